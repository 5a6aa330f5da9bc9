// The page `overview`: the nodes, what is wrong, and the last hour of the node that serves this page.
import { alarmsOf } from "./alarms.js"
import { may, operate, session } from "./api.js"
import { Chart } from "./charts.js"
import { count, counted, duration, rough, size, time } from "./format.js"
import { usePoll } from "./polling.js"
import { html, useEffect, useRef, useState } from "./preact-htm.js"
import { Badge, Empty, Facts, Failure, Table } from "./views.js"

const STATUS_MS = 3000
const HOUR_MS = 3_600_000

export function Overview() {
  // The charts come below the state, and are drawn after it: they would be pushed down.
  const [isKnown, setKnown] = useState(false)
  if (!may("operate", "cluster/status")) {
    return html`<h1>Overview</h1>
      <${Empty} title="Your token does not show the cluster">
        <p>It needs the scope <code>operate:cluster/status</code>. <a href="#/buckets">Look at streams</a> instead.</p>
      <//>`
  }
  return html`<h1>Overview</h1><${State} onKnown=${() => setKnown(true)} />
    ${isKnown && may("operate", "cluster/history") && html`<${Charts} />`}`
}

/** @param {{onKnown: () => void}} given */
function State({ onKnown }) {
  const hasCold = session().has_cold_store && may("operate", "cluster/cold")
  const { data, error } = usePoll(async (signal) => {
    const status = await operate("cluster/status?at=leader", { signal })
    const cold = hasCold ? await operate("cluster/cold?at=leader", { signal }) : null
    return { status, cold }
  }, STATUS_MS)
  const isKnown = data !== null || error !== null
  useEffect(() => {
    if (isKnown) onKnown()
  }, [isKnown])
  if (data === null) return html`<${Failure} error=${error} />`
  const { status, cold } = data
  const alarms = alarmsOf(status, cold)
  return html`
    <${Failure} error=${error} />
    ${alarms.length
      ? html`<ul class="alarms" aria-label="Alarms">
          ${alarms.map(
            (alarm) => html`<li class=${alarm.level} key=${`${alarm.page} ${alarm.what}`}>
              <b>${alarm.what}.</b> ${alarm.advice} ${alarm.at && html`<a href=${alarm.at}>Look at it</a>`}
              <small>docs/operations.md: ${alarm.page}</small>
            </li>`,
          )}
        </ul>`
      : html`<p class="well"><${Badge} kind="good">well<//> No alarms.</p>`}
    <${Facts} of=${[
      ["Cluster", status.cluster_name ?? "a single node"],
      ["Leader", status.leader_id === null ? "none" : `node ${status.leader_id}`],
      ["Term", count(status.term)],
      ["Committed entries", count(status.commit_index)],
      ["Streams", count(status.streams)],
      ["Feature level", status.features],
      [`Free disk of node ${status.node_id}`, status.disk && size(status.disk.free_bytes)],
      ["Cold store", cold && (cold.unavailable_ms === null ? cold.place : `${cold.place}: no answer`)],
      ["Archived until", cold?.archive && time(cold.archive.archived_time_ms)],
    ]} />
    <h2>Nodes</h2>
    <${Table} label="Nodes" rows=${membersOf(status)} idOf=${(/** @type {any} */ row) => row.node_id} columns=${COLUMNS} />
  `
}

/** The members; a single node is one by itself. @param {any} status @returns {any[]} */
function membersOf(status) {
  const single = { node_id: status.node_id, voter: true, version: status.version }
  return (status.members ?? [single]).map((/** @type {any} */ one) => ({
    ...one,
    leads: one.node_id === status.leader_id,
  }))
}

/** @type {import("./views.js").Column[]} */
const COLUMNS = [
  { title: "Node", show: (row) => row.node_id, sort: (row) => row.node_id },
  { title: "Role", show: (row) => (row.leads ? "leader" : row.voter ? "voter" : "learner") },
  {
    title: "State",
    show: (row) =>
      row.connected === false || row.last_contact_ms > 3000
        ? html`<${Badge} kind="bad">silent<//>`
        : html`<${Badge} kind="good">connected<//>`,
  },
  { title: "Lag", number: true, show: (row) => (row.behind_entries === undefined ? "–" : counted(row.behind_entries, "entry", "entries")) },
  { title: "Last heard", number: true, show: (row) => (row.leads || row.last_contact_ms === undefined ? "–" : `${duration(row.last_contact_ms)} ago`) },
  { title: "Release", show: (row) => row.version },
  { title: "For clients", whole: true, show: (row) => row.client_address ?? "–" },
  { title: "For peers", whole: true, show: (row) => row.peer_address ?? "–" },
]

function Charts() {
  const kept = useRef(/** @type {Record<string, (number | null)[]>} */ ({}))
  const { data, error } = usePoll(async (signal) => {
    const last = kept.current.at_ms?.at(-1) ?? 0
    const { columns } = await operate(`cluster/history?after_ms=${last}`, { signal })
    kept.current = joined(kept.current, columns)
    return kept.current
  }, 5000)
  if (data === null || (data.at_ms ?? []).length < 2) {
    return html`<${Failure} error=${error} /><p>The first points of the charts come after ten seconds.</p>`
  }
  const times = /** @type {number[]} */ (data.at_ms)
  const chart = (/** @type {string} */ title, /** @type {any} */ show, /** @type {string[][]} */ ...lines) =>
    html`<${Chart} title=${title} times=${times} show=${show}
      lines=${lines.map(([label = "", name = "", color = ""]) => ({ label, color, values: data[name] ?? [] }))} />`
  const ms = (/** @type {number | null} */ value) => (value === null ? "–" : `${rough(value)} ms`)
  const bytes = (/** @type {number | null} */ value) => (value === null ? "–" : `${size(Math.round(value))}/s`)
  const room = (/** @type {number | null} */ value) => size(value === null ? null : Math.round(value))
  return html`
    <h2>Node ${session().node_id}, the last hour <small>(UTC)</small></h2>
    <div class="charts">
      ${chart("Requests per second", rough, ["writes", "writes_per_s", "one"], ["reads", "reads_per_s", "two"], ["failed", "errors_per_s", "three"])}
      ${chart("Appends take", ms, ["p50", "append_p50_ms", "one"], ["p99", "append_p99_ms", "two"])}
      ${chart("Synced writes of the log take", ms, ["p50", "fsync_p50_ms", "one"], ["p99", "fsync_p99_ms", "two"])}
      ${chart("Traffic", bytes, ["in", "in_bytes_per_s", "one"], ["out", "out_bytes_per_s", "two"])}
      ${chart("The event loop is late by", ms, ["p99", "loop_lag_p99_ms", "one"])}
      ${chart("Connections", rough, ["clients", "http_connections", "one"])}
      ${chart("Free disk", room, ["free", "disk_free_bytes", "one"])}
      ${session().has_cold_store && chart("Not in the cold store yet", room, ["hot", "cold_hot_bytes", "one"])}
    </div>
  `
}

/** Columns with more rows, as far as they are of the last hour. @param {any} before @param {any} more */
function joined(before, more) {
  const times = [...(before.at_ms ?? []), ...more.at_ms]
  const old = times.findIndex((ms) => ms > (times.at(-1) ?? 0) - HOUR_MS)
  return Object.fromEntries(
    Object.keys(more).map((name) => [name, [...(before[name] ?? []), ...more[name]].slice(Math.max(0, old))]),
  )
}
