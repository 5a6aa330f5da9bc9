// Pieces that several pages show.
import { addressOf } from "./address.js"
import { streamsBase } from "./api.js"
import { html, useState } from "./preact-htm.js"

/** @typedef {import("./preact-htm.js").View} View */
/** @typedef {{title: string, show: (row: any) => View, sort?: (row: any) => string | number, number?: boolean, whole?: boolean}} Column `whole`: never broken into lines */

/**
 * A table whose rows are in the order of a column once its title is clicked. A cell that leads
 * somewhere is a link, and arrow keys move between those of the first column.
 * @param {{columns: Column[], rows: any[], label: string, isPart?: boolean, idOf?: (row: any) => string | number}} given
 *   `isPart`: the rows are one page of a longer listing
 */
export function Table({ columns, rows, label, isPart, idOf }) {
  const [order, setOrder] = useState(/** @type {{at: number, down: boolean} | null} */ (null))
  const shown = order ? sorted(rows, columns[order.at]?.sort, order.down) : rows
  const turn = (/** @type {number} */ at) =>
    setOrder(order?.at === at && order.down ? null : { at, down: order?.at === at })
  return html`${isPart && html`<p class="hint">One page of a listing in the order of names. A column's title sorts this page only.</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <thead>
        <tr>
          ${columns.map((column, at) => {
            const state = order?.at === at ? (order.down ? "descending" : "ascending") : "none"
            return html`<th scope="col" class=${column.number ? "number" : ""} aria-sort=${column.sort ? state : null}>
              ${column.sort
                ? html`<button class="plain" onClick=${() => turn(at)}>${column.title}</button>`
                : column.title}
            </th>`
          })}
        </tr>
      </thead>
      <tbody>
        ${shown.map(
          (row, at) => html`<tr key=${idOf ? idOf(row) : at}>
            ${columns.map(
              (column) => html`<td class=${column.number ? "number" : column.whole ? "whole" : ""}>${column.show(row)}</td>`,
            )}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`
}

/** @param {any[]} rows @param {((row: any) => string | number) | undefined} by @param {boolean} down */
function sorted(rows, by, down) {
  if (!by) return rows
  const way = down ? -1 : 1
  return [...rows].sort((one, other) => {
    const [a, b] = [by(one), by(other)]
    return a === b ? 0 : a < b ? -way : way
  })
}

/** A word with a colour that says how things are. @param {{kind: "good" | "bad" | "wait" | "plain", children?: View}} given */
export function Badge({ kind, children }) {
  return html`<span class="badge ${kind}">${children}</span>`
}

/** Text to copy. @param {{text: string, label: string}} given */
export function Copyable({ text, label }) {
  const [told, setTold] = useState("Copy")
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text)
      setTold("Copied")
    } catch {
      setTold("Select and copy it") // Browsers give no clipboard to pages without TLS.
    }
  }
  return html`<div class="copyable">
    <pre tabindex="0" aria-label=${label}>${text}</pre>
    <button onClick=${copy}>${told}</button>
  </div>`
}

/** What to do where there is nothing to see yet. @param {{title: string, children?: View}} given */
export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`
}

/** How to append to a stream, with this very server's address. @param {{path: string}} given `path` as in a listing */
export function FirstSteps({ path }) {
  const url = `${streamsBase().href.replace(/\/$/, "")}${path}`
  const name = decodeURIComponent(path.replace("/v1/stream/", ""))
  const base = streamsBase().href.replace(/\/$/, "")
  return html`
    <p>With curl:</p>
    <${Copyable} label="A command with curl" text=${`curl -X PUT ${quoted(url)} -H 'Content-Type: text/plain' -H "Authorization: Bearer $STREAMD_TOKEN"
curl -X POST ${quoted(url)} -H 'Content-Type: text/plain' -H "Authorization: Bearer $STREAMD_TOKEN" -d 'hello'`} />
    <p>With Python (<code>pip install durable-streamd</code>):</p>
    <${Copyable} label="Lines of Python" text=${`from streamd.client import Client

with Client(${JSON.stringify(base)}) as client:
    client.stream(${JSON.stringify(name)}).create("text/plain")
    client.stream(${JSON.stringify(name)}).append("hello")`} />
  `
}

/** A word in a shell. @param {string} text */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`
}

/** An error, or nothing. @param {{error: import("./api.js").ApiError | null}} given */
export function Failure({ error }) {
  return error && html`<p class="failure" role="alert"><b>${error.code}</b> ${error.message}</p>`
}

/** Names and values. @param {{of: [string, View][]}} given those without a value are left out */
export function Facts({ of }) {
  const told = of.filter(([, value]) => value !== null && value !== undefined && value !== "")
  return html`<dl class="facts">
    ${told.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`
}

/** Whether a listing is longer than this page. @param {any} data @param {URLSearchParams} options */
export function hasPages(data, options) {
  return Boolean(data.has_more || options.get("after"))
}

/** Links to other parts of a listing. @param {{data: any, options: URLSearchParams, page: string, parts: string[]}} given */
export function Pages({ data, options, page, parts }) {
  const prefix = options.get("prefix")
  return html`<nav class="pages" aria-label="Pages of the listing">
    ${options.get("after") && html`<a href=${addressOf(page, parts, { prefix })}>First page</a>`}
    ${data.has_more && html`<a href=${addressOf(page, parts, { prefix, after: data.next_cursor })}>Next page</a>`}
  </nav>`
}
