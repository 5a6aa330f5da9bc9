// The page `subscription`: how far its worker has come in each stream, and its wake.
import { addressOf, partsOfPlain } from "./address.js"
import { ask } from "./api.js"
import { Form } from "./dialogs.js"
import { count, duration, time } from "./format.js"
import { asError, usePoll } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { WakeState, linesOf, sendJson, subscriptionPath } from "./subscriptions.js"
import { Badge, Empty, Facts, Failure, Pages, Table, hasPages } from "./views.js"

/** @typedef {{path: string, link_type: string, acked_offset: string, tail_offset: string, has_pending: boolean}} Linked */
/** @typedef {import("./subscriptions.js").Subscription} Subscription */

const PER_PAGE = 200
const LOOK_MS = 2000

/** @param {{address: import("./address.js").Address}} given */
export function SubscriptionPage({ address }) {
  const id = address.parts[0] ?? ""
  const path = subscriptionPath(id)
  const after = address.options.get("after")
  const query = new URLSearchParams({ limit: String(PER_PAGE), ...(after ? { after } : {}) })
  const { data: found, error, reload } = usePoll(
    async (signal) => (await ask(`${path}?${query}`, { signal })).json(),
    LOOK_MS,
    [id, after],
  )
  const [asked, setAsked] = useState(/** @type {{act: string, stream: string}} */ ({ act: "", stream: "" }))
  const [tested, setTested] = useState("")
  const [failed, setFailed] = useState(/** @type {import("./api.js").ApiError | null} */ (null))
  const test = async () => {
    try {
      const forced = await (await sendJson("POST", `${path}/test`, {})).json()
      setTested(forced.wake_id)
      setFailed(null)
      reload()
    } catch (refused) {
      setFailed(asError(refused))
    }
  }
  const close = () => setAsked({ act: "", stream: "" })
  const done = () => {
    close()
    reload()
  }
  return html`
    <nav class="crumbs" aria-label="Where you are"><a href="#/subscriptions">Subscriptions</a></nav>
    <header class="title"><h1 class="name">${id}</h1>${found && html`<${WakeState} of=${found} />`}</header>
    <${Failure} error=${failed ?? error} />
    ${found && html`
      <${Facts} of=${factsOf(found)} />
      <div class="actions">
        <button onClick=${test}>Wake it as a test</button>
        <button onClick=${() => setAsked({ act: "link", stream: "" })}>Name streams</button>
        <button class="danger" onClick=${() => setAsked({ act: "delete", stream: "" })}>Delete</button>
        <span role="status">${tested && outcomeOf(found, tested)}</span>
      </div>
      <h2>Streams</h2>
      ${found.streams.length === 0
        ? html`<${Empty} title="No stream yet"><p>Streams that the pattern matches appear once they are written.</p><//>`
        : html`<${Table} label="Streams" rows=${found.streams} idOf=${(/** @type {Linked} */ one) => one.path}
            isPart=${hasPages(found, address.options)}
            columns=${columns((stream) => setAsked({ act: "unlink", stream }))} />`}
      <${Pages} data=${found} options=${address.options} page="subscription" parts=${[id]} />
    `}
    ${asked.act && html`<${Question} ...${asked} id=${id} onClose=${close} onDone=${done} />`}
  `
}

/** @param {Subscription} of @returns {[string, import("./preact-htm.js").View][]} */
function factsOf(of) {
  const { wake } = of
  return [
    ["Pattern", of.pattern && html`<code>${of.pattern}</code>`],
    ["Webhook", of.webhook && html`<code>${of.webhook.url}</code>`],
    ["Wake stream", of.wake_stream && html`<a href=${addressOf("stream", partsOfPlain(of.wake_stream))}>${of.wake_stream}</a>`],
    ["Pending streams", count(of.pending_streams)],
    ["Generation", count(of.generation)],
    ["Wake", wake ? html`<code>${wake.wake_id}</code>` : "none outstanding"],
    ["Claimed by", wake?.holder],
    ["Lease until", wake?.lease_until_ms ? time(wake.lease_until_ms) : null],
    ["Attempts", of.attempts || null],
    ["Next attempt", of.next_attempt_at_ms === null ? null : time(of.next_attempt_at_ms)],
    ["Last failure", of.failure],
    ["A worker may be silent for", duration(of.lease_ttl_ms)],
    ["Created", time(Date.parse(of.created_at))],
    ["Description", of.description],
  ]
}

/** What has become of a test. @param {Subscription} found @param {string} wakeId */
function outcomeOf({ wake, type, received, failure }, wakeId) {
  if (wake?.wake_id !== wakeId) return "The worker came, and is done."
  if (wake.holder !== null) return `The worker came: ${wake.holder} has claimed the wake.`
  if (type === "webhook" && received) return "The webhook was received."
  return failure ?? "Nobody has come yet."
}

/** @param {(stream: string) => void} unlink @returns {import("./views.js").Column[]} */
function columns(unlink) {
  return [
    {
      title: "Stream",
      show: (one) => html`<a class="row" href=${addressOf("stream", partsOfPlain(one.path))}>${one.path}</a>`,
      sort: (one) => one.path,
    },
    { title: "State", show: (one) => (one.has_pending ? html`<${Badge} kind="wait">pending<//>` : html`<${Badge} kind="good">done<//>`), sort: (one) => Number(one.has_pending) },
    { title: "Acknowledged until", show: (one) => html`<code>${one.acked_offset}</code>` },
    { title: "Tail", show: (one) => html`<code>${one.tail_offset}</code>` },
    {
      title: "Why",
      show: (one) =>
        one.link_type === "glob" ? "the pattern" : html`by name <button onClick=${() => unlink(one.path)} aria-label="Name it no longer: ${one.path}">Name it no longer</button>`,
      sort: (one) => one.link_type,
    },
  ]
}

/** @param {{act: string, stream: string, id: string, onClose: () => void, onDone: () => void}} given */
function Question({ act, stream, id, onClose, onDone }) {
  const path = subscriptionPath(id)
  if (act === "link") {
    const link = (/** @type {Record<string, string>} */ { streams = "" }) =>
      sendJson("POST", `${path}/streams`, { streams: linesOf(streams) })
    return html`<${Form} title="Name streams" button="Name them" act=${link} onClose=${onClose} onDone=${onDone}
      fields=${[{ name: "streams", label: "Streams (BUCKET/NAME), one a line", kind: "area", required: true, hint: "they need not exist yet" }]} />`
  }
  if (act === "unlink") {
    return html`<${Form} title="Name a stream no longer" button="Name it no longer" confirm=${stream} onClose=${onClose} onDone=${onDone}
      text=${html`<p>Its records wake nobody any more, unless the pattern matches it.</p>`}
      act=${() => ask(`${path}/streams/${encodeURIComponent(stream)}`, { method: "DELETE" })} />`
  }
  return html`<${Form} title="Delete the subscription" button="Delete" confirm=${id} onClose=${onClose}
    text=${html`<p>Nobody is woken any more, and how far the worker has come is forgotten. The streams stay.</p>`}
    act=${() => ask(path, { method: "DELETE" })} onDone=${() => (location.hash = "#/subscriptions")} />`
}
