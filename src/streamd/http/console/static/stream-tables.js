// A stream of the State Protocol as tables: a row for each key, as the changes so far have left it.
import { count, counted } from "./format.js"
import { usePoll } from "./polling.js"
import { html } from "./preact-htm.js"
import { asText, readRecords } from "./records.js"
import { Json } from "./stream-records.js"
import { Empty, Failure, Table } from "./views.js"

/** @typedef {import("./stream.js").About} About */

const MOST_CHANGES = 20_000
const SHOWN_ROWS = 500

/** @param {{about: About}} given */
export function StateTables({ about }) {
  const { data, error } = usePoll((signal) => rowsOf(about, signal), 0, [about.next, about.snapshot])
  if (data === null) return html`<${Failure} error=${error} /><p>Reading the stream …</p>`
  const { tables, isWhole } = data
  return html`
    <${Failure} error=${error} />
    ${!isWhole && html`<p class="failure">Only the first ${count(MOST_CHANGES)} changes were read.</p>`}
    ${tables.size === 0 &&
    html`<${Empty} title="There are no changes of rows">
      <p>Messages of the State Protocol look like this:</p>
      <pre>{"type": "user", "key": "1", "value": {"name": "Ada"}, "headers": {"operation": "insert"}}</pre>
    <//>`}
    ${[...tables].map(([type, rows]) => {
      const list = [...rows].slice(0, SHOWN_ROWS).map(([key, value]) => ({ key, value }))
      return html`<section key=${type}>
        <h2 class="name">${type} <small>${counted(rows.size, "row")}</small></h2>
        <${Table} label=${type} rows=${list} idOf=${(/** @type {any} */ row) => row.key} columns=${columnsOf(list)} />
      </section>`
    })}
  `
}

/** @param {About} about @param {AbortSignal} signal */
async function rowsOf(about, signal) {
  /** @type {Map<string, Map<string, unknown>>} */
  const tables = new Map()
  let offset = about.snapshot ?? "-1"
  for (let changes = 0; changes < MOST_CHANGES; ) {
    const part = await readRecords(about.path, { offset }, signal)
    for (const entry of part.entries) apply(tables, asText(entry.bytes))
    changes += part.entries.length
    offset = part.next
    if (part.upToDate || part.entries.length === 0) return { tables, isWhole: true }
  }
  return { tables, isWhole: false }
}

/** Apply a message; one that is no change of a row does nothing. @param {Map<string, Map<string, unknown>>} tables @param {string} text */
export function apply(tables, text) {
  const { type, key, value, headers } = JSON.parse(text) ?? {}
  const operation = headers?.operation
  if (headers?.control === "reset") tables.clear()
  if (typeof type !== "string" || typeof key !== "string" || !operation) return
  const rows = tables.get(type) ?? new Map()
  tables.set(type, rows)
  if (operation === "delete") rows.delete(key)
  else rows.set(key, value)
}

/** A column for the key, and one for each property of the rows. @param {{key: string, value: any}[]} rows */
function columnsOf(rows) {
  const names = new Set(rows.flatMap(({ value }) => (isPlain(value) ? Object.keys(value) : [])))
  /** @type {import("./views.js").Column[]} */
  const columns = [{ title: "key", show: (row) => row.key, sort: (row) => row.key }]
  for (const name of [...names].slice(0, 30)) {
    columns.push({ title: name, show: (row) => (isPlain(row.value) && Object.hasOwn(row.value, name) ? html`<${Json} value=${row.value[name]} depth=${2} />` : "") })
  }
  if (rows.some(({ value }) => !isPlain(value))) {
    columns.push({ title: "value", show: (row) => (isPlain(row.value) ? "" : html`<${Json} value=${row.value} depth=${1} />`) })
  }
  return columns
}

/** @param {unknown} value */
function isPlain(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value)
}
