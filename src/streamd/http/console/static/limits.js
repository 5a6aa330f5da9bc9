// The page `limits`: rates and quotas of buckets and identities.
import { operate } from "./api.js"
import { Form } from "./dialogs.js"
import { count } from "./format.js"
import { usePoll } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { Empty, Failure, Table } from "./views.js"

/** @typedef {{kind: "buckets" | "identities", name: string, limits: Record<string, number>}} Row */

// All that there are: what a form leaves out, setting it would clear.
export const LIMITS = {
  requests_per_s: "Requests per second",
  bytes_in_per_s: "Bytes in per second",
  bytes_out_per_s: "Bytes out per second",
  live_readers: "Live readers",
  connections: "Connections",
  max_bytes: "Bytes in all (buckets)",
  max_streams: "Streams (buckets)",
  max_stream_bytes: "Bytes of a stream (buckets)",
  max_subscriptions: "Subscriptions (identities)",
}

/** A limit in words, without what it is for. @param {string} name */
export function labelOf(name) {
  return (/** @type {Record<string, string>} */ (LIMITS)[name] ?? name).replace(/ \(.*\)$/, "")
}

export function Limits() {
  const { data, error, reload } = usePoll((signal) => operate("cluster/limits", { signal }), 0)
  const [row, setRow] = useState(/** @type {Row | null} */ (null))
  const [cleared, setCleared] = useState(/** @type {Row | null} */ (null))
  const rows = data ? [...rowsOf("buckets", data), ...rowsOf("identities", data)] : []
  const done = () => {
    setRow(null)
    setCleared(null)
    reload()
  }
  return html`
    <header class="title"><h1>Limits</h1>
      <button onClick=${() => setRow({ kind: "buckets", name: "", limits: {} })}>Set limits</button></header>
    <${Failure} error=${error} />
    ${data && rows.length === 0 &&
    html`<${Empty} title="Nothing is limited"><p>Set limits for a bucket, a token, or <code>*</code> for all others.</p><//>`}
    ${rows.length > 0 && html`<${Table} label="Limits" rows=${rows} columns=${columns(setRow, setCleared)}
      idOf=${(/** @type {Row} */ one) => `${one.kind}/${one.name}`} />`}
    ${row && html`<${Form} title=${row.name ? `Limits of ${row.name}` : "Set limits"} button="Set" fields=${fieldsOf(row)}
      act=${setLimits} onDone=${done} onClose=${() => setRow(null)} />`}
    ${cleared && html`<${Form} title=${`Clear the limits of ${cleared.name}`} button="Clear" confirm=${cleared.name}
      act=${() => operate(pathOf(cleared.kind, cleared.name), { method: "DELETE" })} onDone=${done} onClose=${() => setCleared(null)} />`}
  `
}

/** @param {"buckets" | "identities"} kind @param {any} data @returns {Row[]} */
function rowsOf(kind, data) {
  return Object.entries(data[kind]).map(([name, limits]) => ({ kind, name, limits: /** @type {any} */ (limits) }))
}

/** @param {(row: Row) => void} change @param {(row: Row) => void} clear @returns {import("./views.js").Column[]} */
function columns(change, clear) {
  return [
    { title: "Of", show: (one) => (one.kind === "buckets" ? "bucket" : "identity"), sort: (one) => one.kind },
    { title: "Name", show: (one) => html`<b>${one.name}</b>`, sort: (one) => one.name },
    {
      title: "Limits",
      show: (one) => html`<ul class="scopes">${Object.entries(one.limits).map(
        ([name, value]) => html`<li key=${name}>${labelOf(name)}: ${count(/** @type {number} */ (value))}</li>`,
      )}</ul>`,
    },
    {
      title: "Actions",
      show: (one) => html`<button onClick=${() => change(one)} aria-label="Change the limits of ${one.name}">Change</button>
        <button class="danger" onClick=${() => clear(one)} aria-label="Clear the limits of ${one.name}">Clear</button>`,
    },
  ]
}

/** @param {Row} row @returns {import("./dialogs.js").Field[]} */
function fieldsOf({ kind, name, limits }) {
  return [
    { name: "kind", label: "Of", kind: "choice", choices: ["buckets", "identities"], value: kind },
    { name: "name", label: "Name", value: name, required: true, hint: "* for all others" },
    ...Object.entries(LIMITS).map(([id, label]) => ({
      name: id, label, kind: /** @type {const} */ ("number"), value: limits[id] === undefined ? "" : String(limits[id]),
    })),
  ]
}

/** @param {Record<string, string>} given */
function setLimits({ kind = "", name = "", ...limits }) {
  const set = Object.entries(limits).filter(([, value]) => value !== "")
  const body = Object.fromEntries(set.map(([id, value]) => [id, Number(value)]))
  return operate(pathOf(kind, name), { method: "PUT", body })
}

/** @param {string} kind @param {string} name */
function pathOf(kind, name) {
  return `cluster/limits/${kind}/${encodeURIComponent(name)}`
}
