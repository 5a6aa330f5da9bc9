// Keeps a document of Yjs in step with a stream, whose messages are its updates in base64.
//
// Updates may be applied twice and in any order. So this sends an update again when it does not know
// whether it was stored, and needs no producer.
import { fromBase64, toBase64 } from "lib0/buffer"
import * as Y from "yjs"

const PAUSE_MS = 500
const TIMEOUT_MS = 30_000
const LONG_LOG_MESSAGES = 200

export function sync(doc, stream, show) {
  let connected = false
  let unsent = [] // The updates of this page that are not stored, as far as it knows.
  let sending = false
  let offset = "-1" // What comes before it is in the document.
  let snapshot = null // The offset of the latest one.
  let length = 0 // How many messages came after it.

  doc.on("update", (update, origin) => {
    if (origin === stream) return
    unsent.push(update)
    send()
  })

  // What is typed while a request is under way shares the next one.
  async function send() {
    report()
    if (sending || unsent.length === 0) return
    sending = true
    const { length: count } = unsent
    try {
      await append()
      unsent.splice(0, count)
    } catch {
      await new Promise((resume) => setTimeout(resume, PAUSE_MS))
    }
    sending = false
    send()
  }

  function append(options) {
    const headers = { "Content-Type": "application/json" }
    const body = JSON.stringify([toBase64(Y.mergeUpdates(unsent))])
    return request(address(), { method: "POST", headers, body, ...options })
  }

  // A request with `keepalive` outlives its page.
  addEventListener("pagehide", () => {
    if (unsent.length > 0) append({ keepalive: true }).catch(() => {})
  })
  addEventListener("beforeunload", (event) => {
    if (unsent.length > 0 && !connected) event.preventDefault()
  })

  // Data counts only with the offset after it: if the connection breaks between, it comes again.
  async function follow() {
    try {
      await join()
    } catch {
      again(false)
      return
    }
    const events = new EventSource(address("", { offset, live: "sse" }))
    let joining = true
    let arrived = []
    events.addEventListener("data", ({ data }) => {
      arrived = arrived.concat(JSON.parse(data))
    })
    events.addEventListener("control", ({ data }) => {
      const { streamNextOffset, upToDate } = JSON.parse(data)
      Y.transact(doc, () => arrived.forEach(apply), stream, false)
      length += arrived.length
      arrived = []
      offset = streamNextOffset
      if (upToDate && joining) {
        joining = false
        connected = true
        if (length >= LONG_LOG_MESSAGES) publish().catch(() => {})
      }
      report()
    })
    events.onerror = () => {
      events.close()
      again(!joining) // The server ends each connection after a while.
    }
  }

  function again(isConnected) {
    connected = isConnected
    report()
    setTimeout(follow, PAUSE_MS)
  }

  // Begin at the latest snapshot, or skip to it: what came before it can no longer be read.
  async function join() {
    const { headers } = await request(address(), { method: "HEAD" })
    const latest = headers.get("Stream-Snapshot-Offset")
    if (latest === snapshot) return
    if (latest > offset) {
      const answer = await request(address(`/snapshot/${latest}`))
      apply(new Uint8Array(await answer.arrayBuffer()))
      offset = latest
    }
    snapshot = latest
    length = 0
  }

  // Spare the next reader a long log: the document stands for all of it.
  function publish() {
    const body = Y.encodeStateAsUpdate(doc)
    return request(address(`/snapshot/${offset}`), { method: "PUT", body })
  }

  // Skip what is not an update of Yjs: a program that may append can append anything.
  function apply(update) {
    try {
      Y.applyUpdate(doc, typeof update === "string" ? fromBase64(update) : update, stream)
    } catch {}
  }

  // An address of the stream, or below it. That of the stream may have parameters: a signature.
  function address(path = "", parameters = {}) {
    const url = new URL(stream)
    url.pathname += path
    for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value)
    return url
  }

  function report() {
    show(!connected ? "Offline" : unsent.length > 0 ? "Saving …" : "Saved")
  }

  follow()
}

async function request(url, options) {
  const answer = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT_MS), ...options })
  if (!answer.ok) throw new Error(`${url} answered ${answer.status}`)
  return answer
}
