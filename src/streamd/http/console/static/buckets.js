// The pages `buckets` and `bucket`: listings, a page at a time.
import { addressOf, partsOf } from "./address.js"
import { ask, may } from "./api.js"
import { Form } from "./dialogs.js"
import { count, size, time } from "./format.js"
import { labelOf } from "./limits.js"
import { usePoll } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { Badge, Empty, Facts, Failure, FirstSteps, Pages, Table, hasPages } from "./views.js"

const PER_PAGE = 200

/** @typedef {import("./address.js").Address} Address */

/** @param {{address: Address}} given */
export function Buckets({ address }) {
  const { options } = address
  const [isCreating, setCreating] = useState(false)
  const { data, error, reload } = usePoll(
    async (signal) => (await ask(`?${queryOf(options)}`, { signal })).json(),
    0,
    [options.toString()],
  )
  return html`
    <header class="title"><h1>Buckets</h1><button onClick=${() => setCreating(true)}>Create a bucket</button></header>
    <${Search} options=${options} page="buckets" parts=${[]} label="Names that begin with" />
    <${Failure} error=${error} />
    ${data && data.buckets.length === 0 &&
    html`<${Empty} title=${options.get("prefix") ? "No bucket has a name like this" : "There is no bucket yet"}>
      <p>The first stream makes one.</p><${FirstSteps} path="/v1/stream/agents/first" />
    <//>`}
    ${data && data.buckets.length > 0 &&
    html`<${Table} label="Buckets" rows=${data.buckets} idOf=${(/** @type {any} */ row) => row.bucket_id} columns=${BUCKETS}
        isPart=${hasPages(data, options)} />
      <${Pages} data=${data} options=${options} page="buckets" parts=${[]} />`}
    ${isCreating &&
    html`<${Form} title="Create a bucket" button="Create" onClose=${() => setCreating(false)}
      fields=${[{ name: "name", label: "Name", required: true, hint: "4 to 64 of a-z 0-9 _ -" }]}
      act=${(/** @type {any} */ given) => ask(encodeURIComponent(given.name), { method: "PUT" })}
      onDone=${() => (setCreating(false), reload())} />`}
  `
}

/** @type {import("./views.js").Column[]} */
const BUCKETS = [
  {
    title: "Bucket",
    show: (row) => html`<a class="row" href=${addressOf("bucket", [row.bucket_id])}>${row.bucket_id}</a>`,
    sort: (row) => row.bucket_id,
  },
  { title: "Streams", number: true, show: (row) => count(row.streams), sort: (row) => row.streams },
  { title: "Created", whole: true, show: (row) => time(row.created_at_ms), sort: (row) => row.created_at_ms },
]

/** @param {{address: Address}} given */
export function Bucket({ address }) {
  const { options } = address
  const name = address.parts[0] ?? ""
  const path = encodeURIComponent(name)
  const [question, setQuestion] = useState("")
  const streams = usePoll(
    async (signal) => (await ask(`${path}/streams?${queryOf(options)}`, { signal })).json(),
    0,
    [name, options.toString()],
  )
  const about = usePoll(async (signal) => (await ask(path, { signal })).json(), 0, [name])
  const isOrdinary = about.error?.code !== "INVALID_BUCKET_ID" // `_default` has streams and no page.
  const mayDelete = may("admin", `${name}/`) && about.data?.streams === 0
  return html`
    <nav class="crumbs" aria-label="Where you are"><a href="#/buckets">Buckets</a></nav>
    <header class="title">
      <h1 class="name">${name}</h1>
      ${may("create", `${name}/`) && html`<button onClick=${() => setQuestion("create")}>Create a stream</button>`}
      ${mayDelete && html`<button class="danger" onClick=${() => setQuestion("delete")}>Delete the bucket</button>`}
    </header>
    <${Failure} error=${isOrdinary ? about.error : null} />
    ${about.data && html`<${Facts} of=${factsOf(about.data)} />`}
    <${Search} options=${options} page="bucket" parts=${[name]} label="Streams whose names begin with" />
    <${Failure} error=${isOrdinary && about.error ? null : streams.error} />
    ${streams.data && streams.data.streams.length === 0 &&
    html`<${Empty} title=${options.get("prefix") ? "No stream has a name like this" : "There is no stream here"}>
      <${FirstSteps} path=${`/v1/stream/${path}/first`} />
    <//>`}
    ${streams.data && streams.data.streams.length > 0 &&
    html`<${Table} label="Streams" rows=${streams.data.streams} idOf=${(/** @type {any} */ row) => row.path} columns=${STREAMS}
        isPart=${hasPages(streams.data, options)} />
      <${Pages} data=${streams.data} options=${options} page="bucket" parts=${[name]} />`}
    ${question === "create" &&
    html`<${Form} title="Create a stream" button="Create" onClose=${() => setQuestion("")} fields=${CREATE}
      act=${(/** @type {any} */ given) => createStream(name, given)}
      onDone=${(/** @type {string[]} */ parts) => (location.hash = addressOf("stream", parts))} />`}
    ${question === "delete" &&
    html`<${Form} title="Delete the bucket" button="Delete" confirm=${name} onClose=${() => setQuestion("")}
      act=${() => ask(path, { method: "DELETE" })} onDone=${() => (location.hash = "#/buckets")} />`}
  `
}

/** @type {import("./dialogs.js").Field[]} */
const CREATE = [
  { name: "name", label: "Name", required: true },
  { name: "type", label: "Content type", value: "application/json", required: true },
  { name: "ttl", label: "Seconds it lives after its last use", kind: "number", hint: "none: for ever" },
]

/** @param {string} bucket @param {{name: string, type: string, ttl: string}} given */
async function createStream(bucket, { name, type, ttl }) {
  const parts = [bucket, ...name.split("/")]
  const path = `v1/stream/${parts.map(encodeURIComponent).join("/")}`
  await ask(path, { method: "PUT", headers: { "Content-Type": type, ...(ttl ? { "Stream-TTL": ttl } : {}) } })
  return parts
}

/** @param {any} about @returns {[string, import("./preact-htm.js").View][]} */
function factsOf(about) {
  const limits = Object.entries(about.limits).map(([name, value]) => `${labelOf(name)}: ${count(value)}`)
  return [
    ["Streams", count(about.streams)],
    ["Created", time(about.created_at_ms)],
    ["Bytes", about.kept_bytes === null ? null : size(about.kept_bytes)],
    ["Limits", limits.join("; ")],
  ]
}

/** @type {import("./views.js").Column[]} */
const STREAMS = [
  {
    title: "Stream",
    show: (row) => html`<a class="row" href=${addressOf("stream", partsOf(row.path))}>${row.stream_id}</a>`,
    sort: (row) => row.stream_id,
  },
  {
    title: "State",
    show: (row) => html`<${Badge} kind=${row.status === "open" ? "good" : "plain"}>${row.status}<//>`,
    sort: (row) => row.status,
  },
  { title: "Content type", show: (row) => row.content_type, sort: (row) => row.content_type },
  { title: "Size", number: true, show: (row) => size(row.tail_offset), sort: (row) => row.tail_offset },
  { title: "Written", whole: true, show: (row) => time(row.last_write_at_ms), sort: (row) => row.last_write_at_ms },
  { title: "Created", whole: true, show: (row) => time(row.created_at_ms), sort: (row) => row.created_at_ms },
]

/** @param {URLSearchParams} options */
function queryOf(options) {
  const query = new URLSearchParams({ limit: String(PER_PAGE) })
  for (const name of ["prefix", "after"]) {
    const value = options.get(name)
    if (value) query.set(name, value)
  }
  return query
}

/** @param {{options: URLSearchParams, page: string, parts: string[], label: string}} given */
function Search({ options, page, parts, label }) {
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault()
    const form = /** @type {HTMLFormElement} */ (event.currentTarget)
    location.hash = addressOf(page, parts, { prefix: String(new FormData(form).get("prefix")) })
  }
  return html`<form class="search" role="search" onSubmit=${submit}>
    <label>${label} <input name="prefix" defaultValue=${options.get("prefix") ?? ""} autocomplete="off" /></label>
    <button>Search</button>
  </form>`
}
