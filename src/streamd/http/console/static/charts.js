// Charts over time, drawn by uPlot.
import { html, useEffect, useRef } from "./preact-htm.js"

/** @typedef {{label: string, values: (number | null)[], color: string}} Line `color` names a variable of the style sheet */

/**
 * Lines over the same times. The newest values are text, too, for readers of screens.
 * @param {{title: string, times: number[], lines: Line[], show: (value: number | null) => string}} given
 *   `times` are in ms since the epoch
 */
export function Chart({ title, times, lines, show }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null))
  const plot = useRef(/** @type {uPlot | null} */ (null))
  const data = [times.map((ms) => ms / 1000), ...lines.map((line) => line.values)]
  useEffect(() => {
    const element = place.current
    // uPlot does not start in a browser whose locale has no name (LC_ALL=C): the figures remain.
    if (element === null || typeof uPlot === "undefined") return
    const draw = () => {
      plot.current?.destroy()
      plot.current = new uPlot(options(element, lines, show), data, element)
    }
    draw()
    const resizing = new ResizeObserver(() => plot.current?.setSize(room(element)))
    resizing.observe(element)
    const dark = matchMedia("(prefers-color-scheme: dark)")
    dark.addEventListener("change", draw)
    document.addEventListener("themechange", draw)
    return () => {
      resizing.disconnect()
      dark.removeEventListener("change", draw)
      document.removeEventListener("themechange", draw)
      plot.current?.destroy()
    }
  }, [])
  useEffect(() => plot.current?.setData(data), [times])
  const newest = lines.map((line) => `${line.label} ${show(line.values.at(-1) ?? null)}`).join(", ")
  return html`<figure class="chart">
    <figcaption>
      ${title}
      ${lines.map(
        (line) => html`<span class="key ${line.color}" key=${line.label}>
          ${line.label} <b>${show(line.values.at(-1) ?? null)}</b></span>`,
      )}
    </figcaption>
    <div ref=${place} role="img" aria-label="${title} over the last hour; now ${newest}"></div>
  </figure>`
}

/** @param {HTMLElement} element */
function room(element) {
  return { width: Math.max(200, element.clientWidth), height: 120 }
}

/** @param {HTMLElement} element @param {Line[]} lines @param {(value: number | null) => string} show */
function options(element, lines, show) {
  const color = (/** @type {string} */ name) => resolved(element, name)
  /** @param {any} _ @param {number[]} ticks @param {number} _at @param {number} _room @param {number} step all in s */
  const clock = (_, ticks, _at, _room, step) =>
    ticks.map((s) => new Date(s * 1000).toISOString().slice(11, step < 60 ? 19 : 16))
  const axis = { stroke: color("soft"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false } }
  return {
    ...room(element),
    legend: { show: false },
    cursor: { show: false },
    scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ _least, /** @type {number} */ most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [{ ...axis, size: 28, space: 70, values: clock }, { ...axis, size: 64, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(show) }],
    series: [{}, ...lines.map((line) => ({ stroke: color(line.color), width: 1.5, points: { size: 4 } }))],
  }
}

/**
 * A variable's colour as a canvas takes it, which does not know `light-dark()`: what an element comes
 * to have. @param {HTMLElement} place @param {string} name
 */
function resolved(place, name) {
  const probe = place.appendChild(document.createElement("i"))
  probe.style.color = `var(--${name})`
  const { color } = getComputedStyle(probe)
  probe.remove()
  return color
}
