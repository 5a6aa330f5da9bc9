// All requests of the console, and who its user is.
import { permits } from "./scopes.js"

/**
 * @typedef {object} Session what `/console/session` answers
 * @property {string | null} name
 * @property {string[] | null} scopes
 * @property {number} node_id
 * @property {string} version
 * @property {string | null} cluster_name
 * @property {string | null} streams_url
 * @property {string | null} audit_stream
 * @property {boolean} has_cold_store
 */

/**
 * @typedef {object} Sending
 * @property {string} [method]
 * @property {Record<string, string>} [headers]
 * @property {BodyInit | null} [body]
 * @property {AbortSignal | null} [signal] ends the request
 * @property {boolean} [live] the answer may take for ever
 * @property {string | null} [signed] permits the request in place of the token
 */

const KEPT = "streamd.token"
const TIMEOUT_MS = 20_000
// For how long a signature permits reading, and how long before its end another one is asked for.
const SIGNED_S = 900
const SPARE_MS = 60_000
// Where the API is: the console may be served below a path of a proxy.
const BASE = new URL(".", location.href.split("#")[0] ?? "")

/** A request failed. `status` is 0 if there was no answer. */
export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message)
    this.status = status
    this.code = code
  }
}

/** Tells of `reach` (the node answers again, or no longer) and `leave` (the token is not valid). */
export const news = new EventTarget()
let reached = true
// In memory only, unless the user asks to keep it for this tab.
let token = sessionStorage.getItem(KEPT)
/** @type {Session | null} */
let known = null

export function isReached() {
  return reached
}

/** Who the user is. There must be somebody. */
export function session() {
  if (known === null) throw new Error("nobody has signed in")
  return known
}

/** @param {string} verb @param {string} target */
export function may(verb, target) {
  return permits(session().scopes, verb, target)
}

/** Whether there is any target of which that is permitted. @param {string} verb */
export function mayAnywhere(verb) {
  return session().scopes?.some((scope) => scope.startsWith(`${verb}:`)) ?? true
}

/** Use a token from now on. Throws `ApiError` if it is not valid. @param {string | null} given @param {boolean} keep */
export async function signIn(given, keep) {
  const before = token
  token = given
  try {
    known = await operate("console/session")
  } catch (error) {
    token = before
    throw error
  }
  if (given !== null && keep) sessionStorage.setItem(KEPT, given)
}

/** Take up the token that this tab has kept, if any. */
export async function resume() {
  known = await operate("console/session")
}

export function signOut() {
  token = known = null
  sessionStorage.removeItem(KEPT)
  news.dispatchEvent(new Event("leave"))
}

export function hasToken() {
  return token !== null
}

/**
 * A request to the administration; the decoded answer, null if it has no body.
 * @param {string} path without its first slash
 * @param {{method?: string, body?: unknown, signal?: AbortSignal | null}} [sending]
 * @returns {Promise<any>}
 */
export async function operate(path, { method = "GET", body, signal } = {}) {
  const isWrite = method !== "GET"
  const answer = await send(new URL(path, BASE), {
    method,
    headers: isWrite ? { "Content-Type": "application/json" } : {},
    body: isWrite && method !== "DELETE" ? JSON.stringify(body ?? {}) : null,
    signal: signal ?? null,
  })
  return answer.status === 204 ? null : answer.json()
}

/** A request for streams or buckets. @param {string} path without its first slash @param {Sending} [sending] */
export function ask(path, sending = {}) {
  return send(new URL(path, streamsBase()), sending)
}

/**
 * What permits reading a stream in the token's place, for a while; null if nothing is to be permitted or the
 * token cannot sign (root tokens and JWTs). @param {string} path @param {AbortSignal} signal
 */
async function signature(path, signal) {
  if (token === null) return null
  // By its path, it is signed for the host that the server is asked by, whatever a proxy makes of the URL.
  const url = `${known?.streams_url ?? ""}/${path}`
  try {
    const { signed, expires_at_ms } = await operate("auth/sign", { method: "POST", body: { url, expires_in_s: SIGNED_S }, signal })
    return { signed, untilMs: expires_at_ms - SPARE_MS }
  } catch (error) {
    if (error instanceof ApiError && error.code === "CANNOT_SIGN") return null
    throw error
  }
}

/** A function that asks for a stream live. @param {string} path @param {AbortSignal} signal */
export function liveReader(path, signal) {
  /** @type {{signed: string, untilMs: number} | null} */
  let present = null
  /** @param {URLSearchParams} query @returns {Promise<Response>} */
  return async function read(query) {
    const isOld = present !== null && present.untilMs > Date.now()
    if (!isOld) present = await signature(path, signal)
    try {
      return await ask(`${path}?${query}`, { signal, live: true, signed: present?.signed ?? null })
    } catch (error) {
      // The token was rotated, or is no longer valid: another signature tells.
      if (!isOld || !(error instanceof ApiError && error.code === "INVALID_SIGNED_URL")) throw error
      present = null
      return read(query)
    }
  }
}

/** Where streams are served, with a slash at the end. */
export function streamsBase() {
  return known?.streams_url ? new URL(`${known.streams_url}/`) : BASE
}

/** @param {URL} url @param {Sending} sending */
async function send(url, { method = "GET", headers = {}, body = null, signal = null, live = false, signed = null }) {
  const signals = [...(signal ? [signal] : []), ...(live ? [] : [AbortSignal.timeout(TIMEOUT_MS)])]
  const all = new Headers(headers)
  if (signed !== null) url.searchParams.set("signed", signed)
  else if (token !== null) all.set("Authorization", `Bearer ${token}`)
  let answer
  try {
    answer = await fetch(url, {
      method,
      headers: all,
      body,
      signal: AbortSignal.any(signals),
      cache: "no-store",
    })
  } catch (error) {
    if (signal?.aborted) throw error
    if (url.origin === BASE.origin) reach(false)
    throw new ApiError(0, "UNREACHABLE", `${url.host} does not answer`)
  }
  if (url.origin === BASE.origin) reach(true)
  if (!answer.ok) throw await refused(answer)
  return answer
}

/** @param {Response} answer */
async function refused(answer) {
  const text = await answer.text()
  let error
  try {
    error = JSON.parse(text).error
  } catch {
    error = null // A proxy's answer, or one to HEAD.
  }
  const code = error?.code ?? `HTTP ${answer.status}`
  if (answer.status === 401 && token !== null && code === "INVALID_TOKEN" && known !== null) signOut()
  return new ApiError(answer.status, code, error?.message ?? `the answer has status ${answer.status}`)
}

/** @param {boolean} is */
function reach(is) {
  if (reached === is) return
  reached = is
  news.dispatchEvent(new Event("reach"))
}
