// The records of a stream, a page at a time, as text, JSON or hex.
import { addressOf } from "./address.js"
import { count, size, time } from "./format.js"
import { usePoll } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { PER_PAGE, SHOWN_BYTES, asHex, asText, isJson, isText, parseOffset, parseTime, readRecords, recordAt, timeOf } from "./records.js"
import { Empty, Failure, FirstSteps } from "./views.js"

/** @typedef {import("./stream.js").About} About */
/** @typedef {import("./records.js").Entry} Entry */

const FORMS = ["text", "json", "hex"]

/** @param {{about: About, options: URLSearchParams}} given `options` say where to begin, and in which form */
export function Records({ about, options }) {
  const offset = options.get("offset") ?? undefined
  const number = options.get("record")
  const record = number === null ? undefined : Number(number)
  const usual = isJson(about.contentType) ? "json" : isText(about.contentType) ? "text" : "hex"
  const form = options.get("form") ?? usual
  const when = options.get("time")
  const load = async (/** @type {AbortSignal} */ signal) => {
    const from = when === null ? record : await recordAt(about, parseTime(when) ?? NaN, signal)
    return readRecords(about.path, { offset, record: from }, signal)
  }
  const { data, error } = usePoll(load, 0, [about.next, about.snapshot, offset, number, when])
  const to = (/** @type {Record<string, string | number | null>} */ more) =>
    addressOf("stream", about.parts, { form: form === usual ? null : form, ...more })
  const first = data?.entries[0]?.number ?? 0
  const [tail] = parseOffset(about.next)
  return html`
    <div class="toolbar">
      <${GoTo} to=${to} />
      <nav aria-label="Form of the records">
        ${FORMS.map((one) => html`<a key=${one} href=${addressOf("stream", about.parts, { offset, record, time: when, form: one })}
          aria-current=${one === form ? "true" : null}>${one}</a>`)}
      </nav>
    </div>
    <${Failure} error=${error} />
    ${error?.code === "STREAM_OFFSET_GONE" && about.snapshot &&
    html`<p>A snapshot took the place of the records before
      <a href=${to({ offset: about.snapshot })}>${about.snapshot}</a>.</p>`}
    ${data && data.entries.length === 0 &&
    html`<${Empty} title=${tail === 0 ? "There is no record yet" : "There are no more records"}>
      ${tail === 0 && !about.closed && html`<${FirstSteps} path=${`/${about.path}`} />`}
    <//>`}
    ${data && data.entries.length > 0 && html`
      <ol class="records" aria-label="Records">
        ${data.entries.map((entry) => html`<${Record} key=${`${entry.offset} ${form}`} entry=${entry} form=${form} />`)}
      </ol>`}
    ${data && html`<nav class="pages" aria-label="Pages of the records">
      ${first > 0 && html`<a href=${to({})}>First</a>
        <a href=${to({ record: Math.max(0, first - PER_PAGE) })}>Earlier</a>`}
      ${!data.upToDate && data.entries.length > 0 && html`<a href=${to({ offset: data.next })}>Later</a>`}
      ${tail > PER_PAGE && html`<a href=${to({ record: tail - PER_PAGE })}>Last</a>`}
    </nav>`}
  `
}

/** @param {{to: (more: Record<string, string | number | null>) => string}} given */
function GoTo({ to }) {
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault()
    const form = /** @type {HTMLFormElement} */ (event.currentTarget)
    const given = String(new FormData(form).get("place")).trim()
    form.reset()
    const place = parseTime(given) !== null ? "time" : /^\d{1,15}$/.test(given) ? "record" : "offset"
    location.hash = to({ [place]: given })
  }
  return html`<form class="search" onSubmit=${submit}>
    <label>Go to a record's number, an offset, or a time <input name="place" autocomplete="off" required placeholder="2026-11-27 07:00" /></label>
    <button>Go</button>
  </form>`
}

/** @param {{entry: Entry, form: string}} given */
function Record({ entry, form }) {
  const { number, offset, bytes } = entry
  const said = bytes.length <= SHOWN_BYTES ? timeOf(bytes) : null
  return html`<li>
    <header><a href=${`#${location.hash.slice(1).split("?")[0]}?record=${number}`}>${count(number)}</a>
      <code>${offset}</code> <span>${size(bytes.length)}</span>
      ${said !== null && html`<time>${time(said)}</time>`}</header>
    <${Content} bytes=${bytes} form=${form} />
  </li>`
}

/** Bytes, of which a reader first sees a part. @param {{bytes: Uint8Array, form: string}} given */
export function Content({ bytes, form }) {
  const [isWhole, setWhole] = useState(false)
  const isLong = bytes.length > SHOWN_BYTES
  const shown = isWhole ? bytes : bytes.subarray(0, SHOWN_BYTES)
  const rest = isLong && !isWhole &&
    html`<button onClick=${() => setWhole(true)}>Show all ${size(bytes.length)}</button>`
  if (form === "hex") return html`<pre class="hex" tabindex="0" aria-label="Bytes">${asHex(shown)}</pre>${rest}`
  const text = asText(shown)
  if (form === "json" && !rest) {
    try {
      return html`<div class="json"><${Json} value=${JSON.parse(text)} depth=${0} /></div>`
    } catch {
      return html`<pre>${text}</pre>` // Not every record of every stream is JSON.
    }
  }
  return html`<pre>${text}</pre>${rest}`
}

const OPEN_DEPTH = 2
const SHOWN_ITEMS = 200

/** A value of JSON, whose objects and arrays can be opened. @param {{value: unknown, depth: number}} given */
export function Json({ value, depth }) {
  const [isOpen, setOpen] = useState(depth < OPEN_DEPTH)
  if (value === null || typeof value !== "object") {
    return html`<span class=${`json-${value === null ? "null" : typeof value}`}>${JSON.stringify(value)}</span>`
  }
  const isList = Array.isArray(value)
  const items = Object.entries(value)
  const told = isList ? `[${items.length}]` : `{${items.length}}`
  if (items.length === 0) return html`<span>${isList ? "[]" : "{}"}</span>`
  return html`<span>
    <button class="plain fold" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${isOpen ? "−" : "+"} ${told}</button>
    ${isOpen && html`<ul>
      ${items.slice(0, SHOWN_ITEMS).map(
        ([name, item]) => html`<li key=${name}><span class="json-key">${name}:</span> <${Json} value=${item} depth=${depth + 1} /></li>`,
      )}
      ${items.length > SHOWN_ITEMS && html`<li>and ${items.length - SHOWN_ITEMS} more</li>`}
    </ul>`}
  </span>`
}
