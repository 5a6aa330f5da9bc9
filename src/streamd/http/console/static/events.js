// Follows a stream: server-sent events, read by `fetch` because that tells why a request is refused, as
// EventSource cannot (docs/decisions/041).
import { ApiError, liveReader } from "./api.js"

const PAUSE_MS = 1000

/** @typedef {{text: string, bytes: Uint8Array | null, offset: string}} Arrival `bytes` where the stream is not text; `offset` is where it ends */

/**
 * Follow a stream from an offset until `signal` aborts, over as many connections as it takes.
 * Throws what no new connection helps against.
 *
 * @param {string} path @param {string} offset
 * @param {{signal: AbortSignal, arrived: (arrival: Arrival) => void, state: (word: "live" | "waiting" | "closed") => void}} on
 */
export async function follow(path, offset, { signal, arrived, state }) {
  let at = offset
  let cursor = ""
  const read = liveReader(path, signal)
  while (!signal.aborted) {
    try {
      const query = new URLSearchParams({ offset: at, live: "sse", ...(cursor ? { cursor } : {}) })
      const answer = await read(query)
      state("live")
      const isCoded = answer.headers.get("Stream-SSE-Data-Encoding") === "base64"
      /** @type {string[]} */
      let data = []
      for await (const event of events(answer)) {
        if (event.name === "data") data.push(event.data)
        if (event.name !== "control") continue
        const control = JSON.parse(event.data)
        at = control.streamNextOffset
        cursor = control.streamCursor ?? ""
        for (const one of data) {
          const bytes = isCoded ? Uint8Array.from(atob(one.replaceAll("\n", "")), (each) => each.charCodeAt(0)) : null
          arrived({ text: bytes ? "" : one, bytes, offset: at })
        }
        data = []
        if (control.streamClosed) return state("closed")
      }
    } catch (error) {
      if (signal.aborted) return
      if (error instanceof ApiError && error.status > 0 && error.status < 500 && error.status !== 429) throw error
    }
    state("waiting")
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
  }
}

/** The events of an answer. @param {Response} answer @returns {AsyncGenerator<{name: string, data: string}>} */
export async function* events(answer) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader()
  const decoder = new TextDecoder()
  let rest = ""
  let name = ""
  /** @type {string[]} */
  let data = []
  try {
    for (;;) {
      const { value, done } = await reader.read()
      if (done) return
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n")
      rest = lines.pop() ?? ""
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw
        const [field = "", ...others] = line.split(":")
        const content = others.join(":").replace(/^ /, "")
        if (line === "") {
          if (data.length || name) yield { name, data: data.join("\n") }
          name = ""
          data = []
        } else if (field === "event") name = content
        else if (field === "data") data.push(content)
      }
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}
