// Addresses of pages: the part of the URL after its `#`, which a browser sends to no server.
// `#/stream/agents/chat?view=hex` is the page `stream` with ["agents", "chat"] and its options.

/** @typedef {{page: string, parts: string[], options: URLSearchParams}} Address */

/** @param {string} hash @returns {Address} */
export function parseAddress(hash) {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?")
  const [page = "", ...parts] = path.split("/").map(decoded)
  return { page: page || "overview", parts, options: new URLSearchParams(query) }
}

/**
 * @param {string} page
 * @param {string[]} [parts]
 * @param {Record<string, string | number | null | undefined>} [options] those without a value are left out
 */
export function addressOf(page, parts = [], options = {}) {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(options)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value))
  }
  const path = [page, ...parts].map(encodeURIComponent).join("/")
  return `#/${path}${query.size ? `?${query}` : ""}`
}

/** The path of a stream for requests. @param {string[]} parts */
export function streamPath(parts) {
  // A segment of one dot must stay one, and browsers would resolve it.
  return `v1/stream/${parts.map((part) => (part === "." ? "%2E" : encodeURIComponent(part))).join("/")}`
}

/** The bucket and segments of a stream, from the `path` of a listing. @param {string} path */
export function partsOf(path) {
  const parts = path.replace(/^\/v1\/stream\//, "").split("/").map(decoded)
  return parts.length === 1 ? ["_default", ...parts] : parts
}

/** The same, from a path that has no escapes, as subscriptions name streams. @param {string} path */
export function partsOfPlain(path) {
  const parts = path.split("/")
  return parts.length === 1 ? ["_default", ...parts] : parts
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return text // An address that somebody typed.
  }
}
