// Follows a stream live, with a pause and a filter.
import { follow } from "./events.js"
import { asError } from "./polling.js"
import { html, useEffect, useRef, useState } from "./preact-htm.js"
import { asText, isJson } from "./records.js"
import { Content, Json } from "./stream-records.js"
import { Badge, Failure } from "./views.js"

/** @typedef {import("./stream.js").About} About */
/** @typedef {{key: number, offset: string, text: string, bytes: Uint8Array, value?: unknown}} Line */

const KEPT = 500

/** @param {{about: About}} given */
export function Tail({ about }) {
  const [lines, setLines] = useState(/** @type {Line[]} */ ([]))
  const [state, setState] = useState("waiting")
  const [error, setError] = useState(/** @type {import("./api.js").ApiError | null} */ (null))
  const [isPaused, setPaused] = useState(false)
  const [wanted, setWanted] = useState("")
  const waiting = useRef(/** @type {Line[]} */ ([]))
  const paused = useRef(false)
  paused.current = isPaused
  useEffect(() => {
    const ending = new AbortController()
    let numbers = 0
    let frame = 0
    const draw = () => {
      frame = 0
      if (paused.current) return
      const more = waiting.current
      waiting.current = []
      setLines((before) => [...more.reverse(), ...before].slice(0, KEPT))
    }
    const arrived = (/** @type {import("./events.js").Arrival} */ arrival) => {
      for (const line of linesOf(arrival, about.contentType)) {
        numbers += 1
        waiting.current.push({ key: numbers, ...line })
      }
      waiting.current = waiting.current.slice(-KEPT)
      if (!frame) frame = requestAnimationFrame(draw)
    }
    follow(about.path, "now", { signal: ending.signal, arrived, state: setState }).catch((failed) => setError(asError(failed)))
    return () => {
      ending.abort()
      cancelAnimationFrame(frame)
    }
  }, [])
  const pause = () => {
    setPaused(!isPaused)
    if (isPaused) {
      const more = waiting.current
      waiting.current = []
      setLines((before) => [...more.reverse(), ...before].slice(0, KEPT))
    }
  }
  const shown = wanted ? lines.filter((line) => line.text.includes(wanted)) : lines
  return html`
    <div class="toolbar">
      <span role="status"><${Badge} kind=${state === "live" ? "good" : "wait"}>${isPaused ? "paused" : state}<//></span>
      <button onClick=${pause}>${isPaused ? "Go on" : "Pause"}</button>
      <button onClick=${() => setLines([])}>Clear</button>
      <label>Only lines with <input value=${wanted} autocomplete="off"
        onInput=${(/** @type {any} */ event) => setWanted(event.target.value)} /></label>
    </div>
    <${Failure} error=${error} />
    ${lines.length === 0 && html`<p>What is appended from now on appears here, the newest first.</p>`}
    <ol class="records" aria-label="Arrived">
      ${shown.map(
        (line) => html`<li key=${line.key}>
          <header><code>until ${line.offset}</code></header>
          ${line.value === undefined
            ? html`<${Content} bytes=${line.bytes} form=${line.text ? "text" : "hex"} />`
            : html`<div class="json"><${Json} value=${line.value} depth=${0} /></div>`}
        </li>`,
      )}
    </ol>
  `
}

const ENCODER = new TextEncoder()

/**
 * A line for an event; of a JSON stream one for each message.
 * @param {import("./events.js").Arrival} arrival @param {string} contentType @returns {Omit<Line, "key">[]}
 */
function linesOf({ text, bytes, offset }, contentType) {
  if (bytes) return [{ offset, text: asText(bytes), bytes }]
  if (!isJson(contentType)) return [{ offset, text, bytes: ENCODER.encode(text) }]
  return JSON.parse(text).map((/** @type {unknown} */ value) => ({ offset, text: JSON.stringify(value), bytes: new Uint8Array(), value }))
}
