// The pages `operations` and `operation`: changes of the cluster in steps.
import { addressOf } from "./address.js"
import { operate } from "./api.js"
import { Form } from "./dialogs.js"
import { duration, time } from "./format.js"
import { asError, usePoll } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { Badge, Empty, Facts, Failure, Table } from "./views.js"

/** @typedef {{state?: string, attempts?: number, note?: string, text: string, waits_for?: string}} Step */

const KINDS = ["rolling-restart", "replace-node", "scale-up", "scale-down", "upgrade", "drain", "restart-recovery"]
const ENDED = ["done", "failed", "cancelled"]

export function Operations() {
  const { data, error } = usePoll((signal) => operate("cluster/operations", { signal }), 3000)
  const [isAsking, setAsking] = useState(false)
  const [plan, setPlan] = useState(/** @type {{body: any, steps: Step[]} | null} */ (null))
  if (error?.code === "NOT_A_CLUSTER") {
    return html`<h1>Operations</h1><${Empty} title="This node is a cluster by itself"><p>There is nothing to operate.</p><//>`
  }
  const rows = [...(data?.operations ?? [])].reverse()
  return html`
    <header class="title"><h1>Operations</h1><button onClick=${() => setAsking(true)}>Begin one</button></header>
    <${Failure} error=${error} />
    ${data && rows.length === 0 && html`<${Empty} title="There was no operation yet">
      <p>Restart, replace, add and remove nodes here, or upgrade all of them: step by step, and never without a quorum.</p><//>`}
    ${rows.length > 0 && html`<${Table} label="Operations" rows=${rows} columns=${COLUMNS} idOf=${(/** @type {any} */ row) => row.id} />`}
    ${isAsking && html`<${Form} title="Begin an operation" button="Show its steps" fields=${FIELDS} act=${planned}
      onDone=${(/** @type {any} */ found) => (setAsking(false), setPlan(found))} onClose=${() => setAsking(false)} />`}
    ${plan && html`<${Form} title=${`Begin ${plan.body.kind}`} button="Begin" confirm=${plan.body.kind}
      text=${html`<${Steps} steps=${plan.steps} />`}
      act=${() => operate("cluster/operations", { method: "POST", body: { ...plan.body, dry_run: false } })}
      onDone=${(/** @type {any} */ found) => (location.hash = addressOf("operation", [String(found.id)]))}
      onClose=${() => setPlan(null)} />`}
  `
}

/** @type {import("./dialogs.js").Field[]} */
const FIELDS = [
  { name: "kind", label: "Kind", kind: "choice", choices: KINDS },
  { name: "node_id", label: "Node", kind: "number", hint: "to replace, remove, drain or restart" },
  { name: "addresses", label: "Peer addresses of new nodes", hint: "HOST:PORT, with spaces between them" },
  { name: "release", label: "Release", hint: "to upgrade to" },
  { name: "window", label: "Milliseconds for which the cluster must be well between steps", kind: "number", hint: "none: the server's choice" },
]

/** The steps that it would take. @param {Record<string, string>} given */
async function planned({ kind = "", node_id = "", addresses = "", release = "", window = "" }) {
  const body = {
    kind,
    node_id: Number(node_id || 0),
    addresses: addresses.split(/\s+/).filter(Boolean),
    release,
    dry_run: true,
    ...(window ? { window_ms: Number(window) } : {}),
  }
  const found = await operate("cluster/operations", { method: "POST", body })
  return { body, steps: found.steps }
}

/** @param {{state: string}} given */
function State({ state }) {
  const kind = state === "done" ? "good" : state === "failed" ? "bad" : state === "cancelled" ? "plain" : "wait"
  return html`<${Badge} kind=${kind}>${state.replaceAll("_", " ")}<//>`
}

/** @type {import("./views.js").Column[]} */
const COLUMNS = [
  { title: "Operation", show: (row) => html`<a class="row" href=${addressOf("operation", [String(row.id)])}>${row.id}: ${row.kind}</a>`, sort: (row) => row.id },
  { title: "State", show: (row) => html`<${State} state=${row.state} />` },
  { title: "Steps", show: (row) => `${row.current} of ${row.steps.length}` },
  { title: "Begun", whole: true, show: (row) => time(row.begun_at_ms), sort: (row) => row.begun_at_ms },
  { title: "By", show: (row) => row.requested_by || "–" },
  { title: "Why", show: (row) => row.why },
]

/** @param {{address: import("./address.js").Address}} given */
export function Operation({ address }) {
  const id = address.parts[0] ?? ""
  const path = `cluster/operations/${encodeURIComponent(id)}`
  const { data: found, error, reload } = usePoll((signal) => operate(path, { signal }), 1000, [id])
  const [failed, setFailed] = useState(/** @type {import("./api.js").ApiError | null} */ (null))
  const [isCancelling, setCancelling] = useState(false)
  const act = async (/** @type {string} */ kind) => {
    try {
      await operate(`${path}/${kind}`, { method: "POST" })
      setFailed(null)
      reload()
    } catch (refused) {
      setFailed(asError(refused))
    }
  }
  return html`
    <nav class="crumbs" aria-label="Where you are"><a href="#/operations">Operations</a></nav>
    <${Failure} error=${failed ?? error} />
    ${found && html`
      <header class="title"><h1>${found.id}: ${found.kind}</h1><${State} state=${found.state} /></header>
      <${Facts} of=${[
        ["Begun", time(found.begun_at_ms)], ["By", found.requested_by], ["Ended", found.ended_at_ms && time(found.ended_at_ms)],
        [ENDED.includes(found.state) ? "Why" : "Waits for", found.why], ["Asked for", askedFor(found.arguments)],
      ]} />
      ${!ENDED.includes(found.state) && html`<div class="actions">
        ${found.state === "running" && html`<button onClick=${() => act("pause")}>Pause</button>`}
        ${found.state === "paused" && html`<button onClick=${() => act("resume")}>Resume</button>`}
        ${found.state === "waiting_for_operator" && html`<button class="main" onClick=${() => act("done")}>I have done it</button>`}
        ${!found.cancel_asked && html`<button class="danger" onClick=${() => setCancelling(true)}>Cancel</button>`}
      </div>`}
      <${Steps} steps=${found.steps} />`}
    ${isCancelling && html`<${Form} title="Cancel the operation" button="Cancel the operation" confirm=${found?.kind}
      act=${() => operate(`${path}/cancel`, { method: "POST" })} onClose=${() => setCancelling(false)}
      onDone=${() => (setCancelling(false), reload())} />`}
  `
}

/** What an operation was begun with, in words. @param {any} given */
function askedFor({ node_id, addresses, release, window_ms }) {
  const parts = [node_id && `node ${node_id}`, addresses?.join(" "), release && `release ${release}`, `${duration(window_ms)} between steps`]
  return parts.filter(Boolean).join(", ")
}

/** @param {{steps: Step[]}} given */
function Steps({ steps }) {
  return html`<ol class="steps" aria-label="Steps">
    ${steps.map((step, at) => html`<li key=${at} class=${step.state ?? ""}>
      ${step.text} ${step.state && html`<small>${step.state}${(step.attempts ?? 0) > 1 && `, try ${step.attempts}`}</small>`}
      ${step.note && html`<p>${step.note}</p>`}
      ${step.state === "begun" && html`<p>It waits until ${step.waits_for}.</p>`}
    </li>`)}
  </ol>`
}
