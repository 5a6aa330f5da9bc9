// The page `cold`: the cold store, and to which times it can restore.
import { operate } from "./api.js"
import { count, counted, duration, size, time } from "./format.js"
import { asError, usePoll } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { Badge, Copyable, Empty, Facts, Failure, Table } from "./views.js"

const WORK = { flush: "Flush now", gc: "Collect garbage now", scrub: "Read and verify all objects" }

export function Cold() {
  const { data, error, reload } = usePoll((signal) => operate("cluster/cold?at=leader", { signal }), 3000)
  const [told, setTold] = useState("")
  const [failed, setFailed] = useState(/** @type {import("./api.js").ApiError | null} */ (null))
  if (error?.code === "NO_COLD_STORE") {
    return html`<h1>Cold store</h1><${Empty} title="There is no cold store">
      <p>Configure one in the section <code>[cold]</code> (docs/cold-store.md), or save backups without one:</p>
      <${Copyable} label="A command" text="streamd backup save --help" /><//>`
  }
  const start = async (/** @type {string} */ work) => {
    try {
      await operate(`cluster/cold/${work}`, { method: "POST" })
      setTold("The leader has started it.")
      setFailed(null)
      reload()
    } catch (refused) {
      setFailed(asError(refused))
    }
  }
  return html`
    <h1>Cold store</h1>
    <${Failure} error=${failed ?? error} />
    ${data && html`
      <${Facts} of=${factsOf(data)} />
      <div class="actions">
        ${Object.entries(WORK).map(([work, title]) => html`<button key=${work} onClick=${() => start(work)}>${title}</button>`)}
        <span role="status">${told}</span>
      </div>
      <${RestorePoints} archive=${data.archive} />
      <h2>Tasks</h2>
      <${Table} label="Tasks" columns=${TASKS} idOf=${(/** @type {any} */ row) => row.name}
        rows=${Object.entries(data.tasks).map(([name, task]) => ({ name, .../** @type {any} */ (task) }))} />
    `}
  `
}

/** @param {any} cold @returns {[string, import("./preact-htm.js").View][]} */
function factsOf(cold) {
  const { scrub, gc, flush } = cold
  return [
    ["Place", cold.place],
    ["Answers", cold.unavailable_ms === null ? html`<${Badge} kind="good">yes<//>` : html`<${Badge} kind="bad">not for ${duration(cold.unavailable_ms)}<//>`],
    ["In the store", size(cold.cold_bytes)],
    ["Not in it yet", `${size(cold.hot_bytes)} of ${size(cold.hot_limit_bytes)}`],
    ["Oldest of these", cold.lag_ms === null ? null : duration(cold.lag_ms)],
    ["Packs", `${count(cold.packs)} (${size(cold.pack_bytes)}), garbage: ${count(cold.dead_packs)}`],
    ["Last flush", flush.ago_ms === null ? "none yet" : `${duration(flush.ago_ms)} ago`],
    ["Garbage collection", gc.doing === "nothing" ? `idle, ${counted(gc.rounds, "round")} done` : gc.doing],
    ["Last verified", scrub.last_pass_time_ms === null ? "not yet" : time(scrub.last_pass_time_ms)],
    ["Missing or damaged", scrub.missing_objects + scrub.damaged_objects || null],
  ]
}

/** @param {{archive: any}} given */
function RestorePoints({ archive }) {
  if (!archive) return null
  const at = archive.archived_time_ms
  return html`<h2>Restore points</h2>
    <${Facts} of=${[
      ["To any moment until", time(at)],
      ["Log entries until", count(archive.archived_index)],
      ["Not archived yet", `${counted(archive.lag_entries, "entry", "entries")}, ${size(archive.lag_bytes)}`],
      ["Newest checkpoint", archive.last_snapshot.time_ms === null ? "none yet" : `${time(archive.last_snapshot.time_ms)} (entry ${count(archive.last_snapshot.index)})`],
      ["Gaps", archive.gaps?.map((/** @type {number[]} */ gap) => gap.join("–")).join(", ")],
      ["Fenced off by", archive.fenced_by],
    ]} />
    <p>A restore makes the data of a new cluster, with a command on its first node:</p>
    <${Copyable} label="Commands" text=${`streamd backup list --config /etc/streamd/streamd.toml
streamd restore --help`} />`
}

/** @type {Record<string, string>} What the tasks do. */
const DOES = {
  archive: "copies the log to the store",
  drop: "frees this node's disk of old bytes that are in the store",
  flush: "moves old bytes of streams to the store",
  garbage: "removes objects that nothing needs",
  keys: "collects the members' keys for heads of the log",
  merge: "joins small objects of the archive",
  scrub: "reads all objects and verifies them",
  snapshot: "writes checkpoints, from which a restore begins",
}

/** @type {import("./views.js").Column[]} */
const TASKS = [
  { title: "Task", show: (row) => row.name, sort: (row) => row.name },
  { title: "What it does", show: (row) => DOES[row.name] ?? "–" },
  { title: "State", show: (row) => (row.error ? html`<${Badge} kind="bad">fails<//> ${row.error}` : html`<${Badge} kind="good">well<//>`) },
  { title: "Last success", show: (row) => (row.ago_ms === null ? "–" : `${duration(row.ago_ms)} ago`) },
]
