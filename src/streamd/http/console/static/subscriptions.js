// The page `subscriptions`: which there are, whether their workers come, and the key of webhooks.
import { addressOf } from "./address.js"
import { ask, may, operate } from "./api.js"
import { Form } from "./dialogs.js"
import { count, time } from "./format.js"
import { usePoll } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { Badge, Empty, Failure, Pages, Table, hasPages } from "./views.js"

/**
 * @typedef {object} Subscription
 * @property {string} id
 * @property {"webhook" | "pull-wake"} type
 * @property {string | null} pattern
 * @property {{url: string} | null} webhook
 * @property {string | null} wake_stream
 * @property {number} lease_ttl_ms
 * @property {string} created_at
 * @property {"active" | "failed"} status
 * @property {string | null} description
 * @property {number} generation
 * @property {number} pending_streams
 * @property {{wake_id: string, holder: string | null, lease_until_ms: number | null} | null} wake
 * @property {number} attempts
 * @property {boolean} received
 * @property {number | null} next_attempt_at_ms
 * @property {string | null} failure
 */

const PER_PAGE = 200
const LOOK_MS = 3000
const ROTATE = "cluster/subscription-keys/rotate"

/** The path of a subscription for requests, of all of them without an id. @param {string} [id] */
export function subscriptionPath(id) {
  return `v1/stream/__ds/subscriptions${id === undefined ? "" : `/${encodeURIComponent(id)}`}`
}

/** @param {{address: import("./address.js").Address}} given */
export function Subscriptions({ address }) {
  const after = address.options.get("after")
  const query = new URLSearchParams({ limit: String(PER_PAGE), ...(after ? { after } : {}) })
  const { data, error } = usePoll(
    async (signal) => (await ask(`${subscriptionPath()}?${query}`, { signal })).json(),
    LOOK_MS,
    [after],
  )
  const [asked, setAsked] = useState("")
  const [key, setKey] = useState("")
  const close = () => setAsked("")
  return html`
    <header class="title"><h1>Subscriptions</h1>
      <button onClick=${() => setAsked("create")}>Create a subscription</button>
      ${may("operate", ROTATE) && html`<button class="danger" onClick=${() => setAsked("rotate")}>Rotate the key of webhooks</button>`}
    </header>
    <${Failure} error=${error} />
    <div role="status">${key && html`<p>Webhooks are signed with the key <code>${key}</code> from now on.</p>`}</div>
    ${data && data.subscriptions.length === 0 && !data.has_more && html`<${Empty} title="There is no subscription here">
      <p>One wakes a worker when its streams have records that nobody has acknowledged: by a request to a webhook, or by
        an event in a stream that workers follow. Your token sees those all of whose streams it may subscribe to.</p><//>`}
    ${data && data.subscriptions.length > 0 && html`<${Table} label="Subscriptions" rows=${data.subscriptions} columns=${COLUMNS}
      isPart=${hasPages(data, address.options)}
      idOf=${(/** @type {Subscription} */ one) => one.id} />`}
    ${data && html`<${Pages} data=${data} options=${address.options} page="subscriptions" parts=${[]} />`}
    ${asked === "create" && html`<${Form} title="Create a subscription" button="Create" fields=${CREATE} act=${create} onClose=${close}
      onDone=${(/** @type {string} */ id) => (location.hash = addressOf("subscription", [id]))} />`}
    ${asked === "rotate" && html`<${Form} title="Rotate the key of webhooks" button="Rotate" confirm="webhooks"
      text=${html`<p>The next webhook is signed with a new key. The present one stays published, for receivers that check
        what was signed before.</p>`}
      act=${() => operate(ROTATE, { method: "POST" })} onClose=${close}
      onDone=${(/** @type {{kid: string}} */ { kid }) => (close(), setKey(kid))} />`}
  `
}

/** Whether the worker of a subscription has come. @param {{of: Subscription}} given */
export function WakeState({ of: { status, wake, type, received, pending_streams } }) {
  if (status === "failed") return html`<${Badge} kind="bad">fails<//>`
  if (!wake) return pending_streams ? html`<${Badge} kind="wait">pending<//>` : html`<${Badge} kind="good">idle<//>`
  if (wake.holder !== null) return html`<${Badge} kind="good">claimed<//>`
  return type === "webhook" && received ? html`<${Badge} kind="good">received<//>` : html`<${Badge} kind="wait">waiting<//>`
}

/** @type {import("./views.js").Column[]} */
const COLUMNS = [
  {
    title: "Subscription",
    show: (one) => html`<a class="row" href=${addressOf("subscription", [one.id])}>${one.id}</a>`,
    sort: (one) => one.id,
  },
  { title: "Wake", show: (one) => html`<${WakeState} of=${one} />`, sort: (one) => `${one.status} ${one.wake !== null}` },
  { title: "Pending streams", number: true, show: (one) => count(one.pending_streams), sort: (one) => one.pending_streams },
  { title: "Pattern", show: (one) => (one.pattern === null ? "only named streams" : html`<code>${one.pattern}</code>`), sort: (one) => one.pattern ?? "" },
  { title: "Wakes", show: (one) => html`<code>${one.webhook?.url ?? one.wake_stream}</code>`, sort: (one) => one.type },
  { title: "Generation", number: true, show: (one) => count(one.generation), sort: (one) => one.generation },
  { title: "Created", whole: true, show: (one) => time(Date.parse(one.created_at)), sort: (one) => one.created_at },
]

/** @type {import("./dialogs.js").Field[]} */
const CREATE = [
  { name: "id", label: "Name", required: true },
  { name: "pattern", label: "Pattern of streams", hint: "agents/*: * is one segment of a path, ** any number of them" },
  { name: "streams", label: "Streams by name, one a line", kind: "area", hint: "needed if there is no pattern" },
  { name: "type", label: "Wakes by", kind: "choice", choices: ["pull-wake", "webhook"] },
  { name: "place", label: "The wake stream (BUCKET/NAME), or the webhook's URL", required: true },
  { name: "lease", label: "Milliseconds for which a worker may be silent", kind: "number", value: "30000", required: true },
  { name: "description", label: "Description" },
]

/** Create it; its name. @param {Record<string, string>} given */
async function create({ id = "", pattern = "", streams = "", type = "", place = "", lease = "", description = "" }) {
  const named = linesOf(streams)
  const body = {
    type,
    lease_ttl_ms: Number(lease),
    ...(type === "webhook" ? { webhook: { url: place } } : { wake_stream: place }),
    ...(pattern ? { pattern } : {}),
    ...(named.length ? { streams: named } : {}),
    ...(description ? { description } : {}),
  }
  await sendJson("PUT", subscriptionPath(id), body)
  return id
}

/** @param {"PUT" | "POST"} method @param {string} path @param {object} body */
export function sendJson(method, path, body) {
  return ask(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })
}

/** @param {string} text */
export function linesOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean)
}
