// A stream's records: reading them one by one, and showing their bytes.
import { ApiError, ask } from "./api.js"

/** @typedef {{number: number, offset: string, bytes: Uint8Array}} Entry */
/** @typedef {{entries: Entry[], next: string, upToDate: boolean, contentType: string}} Part */

// Text of a record that is shown before its reader asks for more.
export const SHOWN_BYTES = 16 * 1024
export const PER_PAGE = 100
const ASKED_BYTES = 256 * 1024

/**
 * Up to a page of records, from an offset or from a record's number.
 * @param {string} path @param {{offset?: string, record?: number}} from @param {AbortSignal} [signal]
 * @param {number} [bytes] after which no further record is read
 * @returns {Promise<Part>}
 */
export async function readRecords(path, { offset, record }, signal, bytes = ASKED_BYTES) {
  /** @type {Record<string, string>} */
  const from = record === undefined ? { offset: offset ?? "-1" } : { record: String(record) }
  const query = new URLSearchParams({ ...from, framing: "lengths", max_bytes: String(bytes) })
  const answer = await ask(`${path}?${query}`, { signal: signal ?? null })
  const contentType = answer.headers.get("Stream-Content-Type") ?? ""
  const all = unframed(await answer.arrayBuffer(), answer.headers.get("Stream-First-Offset") ?? "", isJson(contentType))
  const entries = all.slice(0, PER_PAGE)
  const following = all[PER_PAGE]
  return {
    entries,
    next: following ? following.offset : (answer.headers.get("Stream-Next-Offset") ?? ""),
    upToDate: following === undefined && answer.headers.get("Stream-Up-To-Date") === "true",
    contentType,
  }
}

/**
 * The number of the first record whose time is not before another one; one past the last if there is none.
 * The server keeps no time for a record: this looks at the times that messages say, in twenty requests for a
 * million of them, and needs them to be in order. Throws `ApiError` if a message says none.
 * @param {{path: string, next: string, snapshot: string | null}} of @param {number} ms @param {AbortSignal} signal
 */
export async function recordAt({ path, next, snapshot }, ms, signal) {
  let low = parseOffset(snapshot ?? "")[0]
  let high = parseOffset(next)[0]
  while (low < high) {
    const middle = Math.floor((low + high) / 2)
    const { entries } = await readRecords(path, { record: middle }, signal, 1)
    const found = entries[0] && timeOf(entries[0].bytes)
    if (found === null || found === undefined) {
      throw new ApiError(-1, "NO_TIME", `record ${middle} says no time: time, ts or timestamp, or headers.timestamp`)
    }
    if (found < ms) low = middle + 1
    else high = middle
  }
  return low
}

// Numbers below are seconds, of which the year 5138 is the last; those above are milliseconds, after 1973.
const LAST_SECOND = 1e11

/** The time that a JSON message says, in ms since the epoch; null if it says none. @param {Uint8Array} bytes */
export function timeOf(bytes) {
  let message
  try {
    message = JSON.parse(asText(bytes))
  } catch {
    return null
  }
  for (const said of [message?.time, message?.ts, message?.timestamp, message?.headers?.timestamp]) {
    const ms = typeof said === "number" ? (said < LAST_SECOND ? said * 1000 : said) : parseTime(said)
    if (ms !== null && Number.isFinite(ms) && ms > 0) return ms
  }
  return null
}

/** A time as people write it, UTC unless it says another zone; null if it is none. @param {unknown} text */
export function parseTime(text) {
  const found = typeof text === "string" && /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:\d\d)?)?$/.exec(text.trim())
  if (!found) return null
  const ms = Date.parse(`${found[1]}T${found[2] ?? "00:00"}${found[3] ?? "Z"}`)
  return Number.isNaN(ms) ? null : ms
}

/**
 * The records of an answer with `framing=lengths`: how many, the length of each, and the bytes.
 * @param {ArrayBuffer} buffer @param {string} first offset of the first @param {boolean} json
 * @returns {Entry[]}
 */
export function unframed(buffer, first, json) {
  const view = new DataView(buffer)
  const count = buffer.byteLength ? view.getUint32(0) : 0
  let [number, byte] = parseOffset(first)
  let at = 4 * (count + 1)
  const entries = []
  for (let index = 0; index < count; index += 1) {
    const length = view.getUint32(4 * (index + 1))
    // The length of a JSON message counts the comma after it.
    const bytes = new Uint8Array(buffer, at, json ? length - 1 : length)
    entries.push({ number, offset: offsetOf(number, byte), bytes })
    number += 1
    byte += length
    at += length
  }
  return entries
}

/** Record number and byte of an offset. @param {string} offset @returns {[number, number]} */
export function parseOffset(offset) {
  const [record = "0", byte = "0"] = offset.split("_")
  return [Number(record), Number(byte)]
}

/** @param {number} record @param {number} byte */
function offsetOf(record, byte) {
  return [record, byte].map((number) => String(number).padStart(16, "0")).join("_")
}

/** @param {string} contentType */
export function isJson(contentType) {
  return contentType.split(";")[0]?.trim().toLowerCase() === "application/json"
}

/** @param {string} contentType */
export function isText(contentType) {
  return isJson(contentType) || contentType.toLowerCase().startsWith("text/")
}

/** @param {Uint8Array} bytes */
export function asText(bytes) {
  return new TextDecoder().decode(bytes)
}

/** Lines of 16 bytes, with their characters. @param {Uint8Array} bytes */
export function asHex(bytes) {
  const lines = []
  for (let at = 0; at < bytes.length; at += 16) {
    const line = [...bytes.subarray(at, at + 16)]
    const hex = line.map((byte) => byte.toString(16).padStart(2, "0")).join(" ")
    const text = line.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`)
  }
  return lines.join("\n")
}
