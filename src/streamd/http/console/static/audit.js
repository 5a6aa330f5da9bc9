// The page `audit`: the newest entries of the audit trail, if that is a stream.
import { streamPath } from "./address.js"
import { ask, may, session } from "./api.js"
import { usePoll } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { asText, parseOffset, readRecords } from "./records.js"
import { Json } from "./stream-records.js"
import { Copyable, Empty, Failure, Table } from "./views.js"

const SHOWN = 100

export function Audit() {
  const name = session().audit_stream
  if (name === null) {
    return html`<h1>Audit trail</h1><${Empty} title="There is no audit trail in a stream">
      <p>Configure one, and every act of administration is in it with who did it:</p>
      <${Copyable} label="Configuration" text=${'[log]\naudit = "stream:audit/trail"'} /><//>`
  }
  if (!may("read", name)) {
    return html`<h1>Audit trail</h1><p>Your token does not permit reading <b class="name">${name}</b>.</p>`
  }
  return html`<h1>Audit trail</h1><${Entries} path=${streamPath(name.split("/"))} />`
}

/** @param {{path: string}} given */
function Entries({ path }) {
  const [wanted, setWanted] = useState("")
  const { data, error } = usePoll((signal) => newest(path, signal), 5000)
  const shown = (data ?? []).filter(({ text }) => text.includes(wanted))
  return html`
    <div class="toolbar"><label>Only entries with <input value=${wanted} autocomplete="off"
      onInput=${(/** @type {any} */ event) => setWanted(event.target.value)} /></label></div>
    <${Failure} error=${error?.status === 404 ? null : error} />
    ${(error?.status === 404 || data?.length === 0) && html`<p>Nothing was recorded yet.</p>`}
    ${shown.length > 0 && html`<${Table} label="Entries" rows=${shown} columns=${COLUMNS} idOf=${(/** @type {any} */ row) => row.number} />`}
  `
}

/** @param {string} path @param {AbortSignal} signal */
async function newest(path, signal) {
  const head = (await ask(path, { method: "HEAD", signal })).headers
  const [tail] = parseOffset(head.get("Stream-Next-Offset") ?? "")
  const { entries } = await readRecords(path, { record: Math.max(0, tail - SHOWN) }, signal)
  return entries.reverse().map(({ number, bytes }) => {
    const text = asText(bytes)
    return { number, text, entry: JSON.parse(text) }
  })
}

/** @type {import("./views.js").Column[]} */
const COLUMNS = [
  { title: "Time", whole: true, show: ({ entry }) => String(entry.time).replace("T", " ") },
  { title: "Node", show: ({ entry }) => entry.node },
  { title: "Event", show: ({ entry }) => entry.event },
  { title: "Who", show: ({ entry }) => entry.who ?? "–" },
  { title: "What", show: ({ entry }) => (entry.path ? html`${entry.method} <code>${entry.path}</code>` : "–") },
  { title: "Outcome", show: ({ entry }) => entry.code ?? entry.status ?? "–" },
  { title: "All of it", show: ({ entry }) => html`<div class="json-cell"><${Json} value=${entry} depth=${2} /></div>` },
]
