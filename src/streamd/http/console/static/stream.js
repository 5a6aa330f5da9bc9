// The page `stream`: what a stream is, its records, and what can be done to it.
import { addressOf, streamPath } from "./address.js"
import { ask, may, operate } from "./api.js"
import { count, counted, duration, size, time } from "./format.js"
import { usePoll } from "./polling.js"
import { html } from "./preact-htm.js"
import { isJson, parseOffset } from "./records.js"
import { Actions } from "./stream-actions.js"
import { Records } from "./stream-records.js"
import { StateTables } from "./stream-tables.js"
import { Tail } from "./stream-tail.js"
import { Badge, Facts, Failure } from "./views.js"

/** @typedef {import("./address.js").Address} Address */
/**
 * @typedef {object} About what a stream is
 * @property {string[]} parts its bucket and the segments of its name
 * @property {string} target for scopes: `bucket/name`
 * @property {string} path for requests
 * @property {string} contentType
 * @property {string} next the offset of the tail
 * @property {boolean} closed
 * @property {string | null} snapshot the offset of its latest snapshot
 * @property {string | null} ttl
 * @property {string | null} expires
 * @property {any} inner what `/cluster/stream` tells, if the user may see that
 */

const VIEWS = { records: "Records", tail: "Live", tables: "Tables" }

/** @param {{address: Address}} given */
export function StreamPage({ address }) {
  const { parts, options } = address
  const name = parts.join("/")
  const { data: about, error, reload } = usePoll((signal) => look(parts, signal), 0, [name])
  const view = options.get("view") ?? "records"
  return html`
    <nav class="crumbs" aria-label="Where you are">
      <a href="#/buckets">Buckets</a> / <a href=${addressOf("bucket", [parts[0] ?? ""])}>${parts[0]}</a>
    </nav>
    <header class="title">
      <h1 class="name">${parts.slice(1).join("/")}</h1>
      ${about && html`<${Badge} kind=${about.closed ? "plain" : "good"}>${about.closed ? "closed" : "open"}<//>`}
    </header>
    <${Failure} error=${error} />
    ${about && html`
      <${Facts} of=${factsOf(about)} />
      <${Lineage} about=${about} />
      <${Actions} about=${about} reload=${reload} />
      <nav class="tabs" aria-label="Views">
        ${Object.entries(VIEWS).map(
          ([id, title]) =>
            (id !== "tables" || isJson(about.contentType)) &&
            html`<a key=${id} href=${addressOf("stream", parts, { view: id })} aria-current=${id === view ? "page" : null}>${title}</a>`,
        )}
      </nav>
      ${!may("read", about.target)
        ? html`<p>Your token does not permit reading this stream.</p>`
        : view === "tail"
          ? html`<${Tail} key=${name} about=${about} />`
          : view === "tables"
            ? html`<${StateTables} key=${name} about=${about} />`
            : html`<${Records} key=${name} about=${about} options=${options} />`}
      <${Producers} about=${about} />
    `}
  `
}

/** @param {string[]} parts @param {AbortSignal} signal @returns {Promise<About>} */
async function look(parts, signal) {
  const path = streamPath(parts)
  const inside = `cluster/stream?stream_path=${encodeURIComponent(`/${path}`)}`
  const [{ headers: head }, inner] = await Promise.all([
    ask(path, { method: "HEAD", signal }),
    may("operate", "cluster/stream") ? operate(inside, { signal }) : null,
  ])
  return {
    parts,
    target: parts.join("/"),
    path,
    contentType: head.get("Content-Type") ?? "",
    next: head.get("Stream-Next-Offset") ?? "",
    closed: head.get("Stream-Closed") === "true",
    snapshot: head.get("Stream-Snapshot-Offset"),
    ttl: head.get("Stream-TTL"),
    expires: head.get("Stream-Expires-At"),
    inner,
  }
}

/** @param {About} about @returns {[string, import("./preact-htm.js").View][]} */
function factsOf({ contentType, next, snapshot, ttl, expires, inner }) {
  const [records, bytes] = parseOffset(next)
  return [
    ["Content type", contentType],
    ["Records", count(records)],
    ["Size", size(bytes)],
    ["Next offset", html`<code>${next}</code>`],
    ["Lives after its last use", ttl && duration(Number(ttl) * 1000)],
    ["Ends", expires],
    ["Snapshot at", snapshot && html`<code>${snapshot}</code>`],
    ["Created", inner && time(inner.created_at_ms)],
    ["Written", inner && time(inner.last_write_at_ms)],
    ["In the cold store", inner && `${size(inner.cold_bytes)} (${counted(inner.cold_records, "record")})`],
    ["Not in it yet", inner && size(inner.hot_bytes)],
  ]
}

/** Where a fork comes from, the nearest source last, and how many come from it. @param {{about: About}} given */
function Lineage({ about: { inner, parts } }) {
  if (!inner || (inner.sources.length === 0 && inner.forks === 0)) return null
  const names = [...inner.sources.map((/** @type {any} */ one) => one.name), parts.join("/")]
  /** @param {number} at @returns {import("./preact-htm.js").View} */
  const level = (at) => html`<ul>
    <li>
      ${at === names.length - 1
        ? html`<b>${names[at]}</b>${inner.forks > 0 && ` – ${counted(inner.forks, "fork")}`}`
        : names[at] === null ? "a stream that was deleted" : html`<a href=${addressOf("stream", names[at].split("/"))}>${names[at]}</a>
          until ${count(inner.sources[at].end_record)}`}
      ${at < names.length - 1 && level(at + 1)}
    </li>
  </ul>`
  return html`<section class="lineage" aria-label="Forks">${level(0)}</section>`
}

/** @param {{about: About}} given */
function Producers({ about: { inner } }) {
  if (!inner || inner.producers.length === 0) return null
  return html`<h2>Producers</h2>
    <ul class="producers">
      ${inner.producers.map(
        (/** @type {any} */ one) =>
          html`<li key=${one.id}><b>${one.id}</b> epoch ${one.epoch}, last sequence ${one.seq}</li>`,
      )}
    </ul>
    ${inner.more_producers && html`<p>There are more.</p>`}`
}
