// Sends every kind of request of the packages to the server at a URL, one after the other, so that
// two servers can be compared by what they answered. Each line of output is what a call came to.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"
import * as aisdk from "@durable-streams/aisdk-transport"
import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"
import * as tanstack from "@durable-streams/tanstack-ai-transport"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import { Awareness } from "y-protocols/awareness"
import * as Y from "yjs"

const [dsServerUrl] = process.argv.slice(2)
const root = `${dsServerUrl}/v1/stream/requests`
// For streams whose requests depend on what happens first.
const unordered = `${dsServerUrl}/v1/stream/unordered`
const print = console.log
console.log = () => {} // The Yjs server tells of each snapshot there.
const JSON_TYPE = "application/json"
const backoffOptions = { initialDelay: 1, maxDelay: 1, multiplier: 1, maxRetries: 0 }

async function tell(name, call) {
  try {
    const found = await call()
    print(`${name}: ${JSON.stringify(found) ?? "done"}`)
  } catch (error) {
    print(`${name}: ${error.constructor.name} ${error.status ?? ""} ${error.code ?? ""}`)
  }
}

const at = (path, options) => new DurableStream({ url: `${root}/${path}`, backoffOptions, ...options })
const open = (path, options) => stream({ url: `${root}/${path}`, backoffOptions, ...options })

async function handles() {
  const events = at("events")
  await tell("head of nothing", () => events.head())
  await tell("append to nothing", () => at("events", { contentType: JSON_TYPE }).append("1"))
  await tell("read of nothing", async () => (await open("events", { live: false })).json())
  await tell("delete of nothing", () => events.delete())
  await tell("create", async () => void (await events.create({ contentType: JSON_TYPE })))
  await tell("create again", async () => void (await events.create({ contentType: JSON_TYPE })))
  await tell("create as another", async () => void (await at("events").create({ contentType: "text/plain" })))
  await tell("read of the empty", async () => (await open("events", { live: false })).json())
  await tell("append", () => events.append('{"n":1}'))
  await tell("batch", () => Promise.all([2, 3, 4].map((n) => events.append(`{"n":${n}}`))))
  await tell("append a list", () => events.append("[5,6]"))
  await tell("append no JSON", () => events.append("{"))
  await tell("append nothing", () => events.append(""))
  await tell("append another type", () => events.append("x", { contentType: "text/plain" }))
  await tell("append in sequence", () => events.append("7", { seq: "b" }))
  await tell("append out of sequence", () => events.append("8", { seq: "a" }))
  await tell("connect", async () => (await DurableStream.connect({ url: events.url })).contentType)
  await tell("head", async () => Object.keys(await events.head()).sort())
  await tell("read", async () => (await open("events", { live: false })).json())
  await tell("read from now", async () => (await open("events", { live: false, offset: "now" })).json())
  await tell("read from no offset", async () => (await open("events", { live: false, offset: "x y" })).json())
  const { offset } = await open("events", { live: false })
  await tell("read from the tail", async () => (await open("events", { live: false, offset })).json())
  await tell("events", async () => {
    const { offset } = await events.head()
    const response = await open("events", { live: "sse", offset })
    const next = response.jsonStream()[Symbol.asyncIterator]().next()
    await events.append('"heard"')
    const { value } = await next
    response.cancel()
    return value
  })
  await tell("close with a message", async () => void (await events.close({ body: "10" })))
  await tell("close again", async () => void (await events.close()))
  await tell("append to the closed", () => events.append("11"))
  await tell("create the closed", async () => void (await events.create({ contentType: JSON_TYPE })))
  await tell("head of the closed", async () => (await events.head()).streamClosed)
  for (const live of [true, "long-poll", "sse"]) {
    await tell(`read to the end, ${live}`, async () => (await open("events", { live })).json())
    await tell(`read past the end, ${live}`, async () => {
      const { offset } = await events.head()
      return (await open("events", { live, offset })).json()
    })
  }
  await tell("delete", () => events.delete())
  await tell("head of the deleted", () => events.head())
}

async function kinds() {
  await tell("text", async () => {
    const text = await DurableStream.create({ url: `${root}/text`, contentType: "text/plain; charset=utf-8", ttlSeconds: 3600 })
    await text.append("one\ntwo\r\n")
    await text.append("ü🙂")
    await text.close({ body: "end" })
    return [await (await open("text", { live: false })).text(), await (await open("text", { live: "sse" })).text()]
  })
  await tell("bytes", async () => {
    const expiresAt = "2099-01-01T00:00:00Z"
    const bytes = await DurableStream.create({ url: `${root}/bytes`, contentType: "application/octet-stream", expiresAt })
    await bytes.append(new Uint8Array([0, 255, 10]))
    await bytes.close()
    const read = []
    for (const live of [false, "long-poll", "sse"]) read.push([...(await (await open("bytes", { live })).body())])
    return read
  })
  await tell("with a body, closed", async () => {
    await DurableStream.create({ url: `${root}/whole`, contentType: JSON_TYPE, body: "[1,2]", closed: true })
    return (await open("whole", { live: "sse" })).json()
  })
  await tell("TTL and expiry", () => at("both").create({ contentType: JSON_TYPE, ttlSeconds: 1, expiresAt: "2099-01-01T00:00:00Z" }))
  await tell("piped", async () => {
    const piped = await DurableStream.create({ url: `${unordered}/piped`, contentType: "text/plain" })
    await piped.appendStream(new Blob(["from ", "a pipe"]).stream())
    return (await stream({ url: piped.url, live: false })).text()
  })
}

async function methods() {
  const lines = await DurableStream.create({ url: `${root}/lines`, contentType: "text/plain" })
  await lines.append("one two")
  await lines.close()
  await tell("written", async () => {
    const written = await DurableStream.create({ url: `${unordered}/written`, contentType: "text/plain" })
    await new Blob(["one ", "two"]).stream().pipeTo(written.writable())
    return (await stream({ url: written.url, live: "sse" })).text()
  })
  const subscribed = (method) => async () => {
    const response = await open("lines", { live: "sse" })
    let told
    const heard = new Promise((resolve) => (told = resolve))
    response[method]((chunk) => (chunk.upToDate ? told(chunk.text ?? chunk.data.length) : undefined))
    const found = await heard
    response.cancel()
    return found
  }
  await tell("text", subscribed("subscribeText"))
  await tell("bytes", subscribed("subscribeBytes"))
  await tell("streamed", async () => {
    const read = []
    for await (const text of (await open("lines", { live: false })).textStream()) read.push(text)
    for await (const { length } of (await open("lines", { live: false })).bodyStream()) read.push(length)
    return read
  })
  await tell("what a read says", async () => {
    const { status, statusText, ok, upToDate, streamClosed } = await open("lines", { live: false })
    return [status, statusText, ok, upToDate, streamClosed]
  })
  await tell("asked for each request", async () => {
    const asked = []
    const params = { any: () => `${asked.push("params")}` }
    const headers = { "X-Any": async () => `${asked.push("headers")}` }
    await (await open("lines", { live: "sse", headers, params })).text()
    return asked
  })
  await tell("an error is told first", async () => {
    const errors = []
    await open("missing", { onError: ({ status }) => void errors.push(status) }).catch(() => {})
    return errors
  })
  // Whether there is another request before the end is a matter of chance.
  const polled = await DurableStream.create({ url: `${unordered}/polled`, contentType: JSON_TYPE })
  await tell("long-poll", async () => {
    const response = await polled.stream({ live: "long-poll", offset: "now" })
    const next = response.jsonStream()[Symbol.asyncIterator]().next()
    await polled.append("9")
    const { value } = await next
    response.cancel()
    return value
  })
  await tell("stopped", async () => {
    const stopping = new AbortController()
    const response = await polled.stream({ live: "long-poll", signal: stopping.signal })
    setTimeout(() => stopping.abort(), 10)
    return response.text()
  })
}

async function producers() {
  const made = await DurableStream.create({ url: `${root}/produced`, contentType: JSON_TYPE })
  const producer = (options) => {
    const errors = []
    const made_ = new IdempotentProducer(made, "writer", { onError: (error) => errors.push(error), ...options })
    return { producer: made_, errors }
  }
  const produce = (name, options, messages) =>
    tell(name, async () => {
      const { producer: writer, errors } = producer(options)
      for (const message of messages) {
        writer.append(message)
        await writer.flush()
      }
      await writer.detach()
      return errors.map((error) => `${error.constructor.name} ${error.code ?? error.status ?? ""}`)
    })
  await produce("produce", {}, ["1", "2"])
  await produce("produce the same", {}, ["1"])
  await produce("produce in an epoch", { epoch: 3 }, ["3"])
  await produce("produce in a stale epoch", { epoch: 2 }, ["4"])
  await produce("claim", { epoch: 0, autoClaim: true }, ["5"])
  await tell("a gap", () =>
    fetch(made.url, {
      method: "POST",
      headers: { "Content-Type": JSON_TYPE, "Producer-Id": "writer", "Producer-Epoch": "4", "Producer-Seq": "9" },
      body: "6",
    }).then((answer) => answer.status)
  )
  await tell("restart", async () => {
    const { producer: writer, errors } = producer({ epoch: 5 })
    writer.append("21")
    await writer.restart()
    writer.append("22")
    await writer.flush()
    return [writer.epoch, writer.nextSeq, writer.pendingCount, writer.inFlightCount, errors.length]
  })
  await tell("close as a producer", async () => {
    await producer({ epoch: 7 }).producer.close("7")
  })
  await tell("many in flight", async () => {
    const url = `${unordered}/produced`
    const many = await DurableStream.create({ url, contentType: "text/plain" })
    const writer = new IdempotentProducer(many, "writer", { maxInFlight: 8, maxBatchBytes: 1, lingerMs: 0 })
    const letters = [..."abcdefghijklmnopqrstuvwxyz"]
    letters.forEach((letter) => writer.append(letter))
    await writer.close(".")
    return (await stream({ url, live: false })).text()
  })
  await produce("produce to the closed", { epoch: 8 }, ["8"])
  await tell("produced", async () => (await open("produced", { live: false })).json())
}

async function* chunks() {
  yield { type: "text-delta", id: "1", delta: "Good" }
  yield { type: "text-delta", id: "1", delta: " day" }
}

async function transports() {
  const source = chunks()
  const target = (path) => ({ writeUrl: `${root}/${path}` })
  const told = async (answer) => [answer.status, Object.keys(answer.headers.get("location") ? await answer.json() : {})]
  await tell("chat", async () => told(await aisdk.toDurableStreamResponse({ source, stream: target("chat"), mode: "await" })))
  await tell("chat again", () => aisdk.toDurableStreamResponse({ source: chunks(), stream: target("chat"), mode: "await" }))
  await tell("chat, made before", () => aisdk.toDurableStreamResponse({ source: chunks(), stream: { ...target("none"), createIfMissing: false }, mode: "await" }))
  await tell("connect to a chat", async () => {
    const api = "data:application/json,"
    const fetchClient = async () => new Response(null, { headers: { Location: `${root}/chat` } })
    const transport = aisdk.createDurableChatTransport({ api, fetchClient })
    const read = []
    for await (const chunk of await transport.reconnectToStream({ chatId: "1" })) read.push(chunk.delta)
    return read
  })
  const session = (mode) =>
    tanstack.toDurableChatSessionResponse({
      stream: target("session"),
      newMessages: [{ id: "m1", role: "user", parts: [{ type: "text", content: "Hi" }] }],
      responseStream: (async function* () {
        yield { type: "TEXT_MESSAGE_CONTENT", messageId: "m2", delta: "Hello", content: "Hello" }
      })(),
      mode,
    })
  await tell("session", async () => told(await session("await")))
  await tell("session again", async () => told(await session("await")))
  await tell("snapshot", async () => {
    const { messages } = await tanstack.materializeSnapshotFromDurableStream({ readUrl: `${root}/session` })
    return messages.map(({ role, parts }) => [role, parts])
  })
  await tell("close a session", async () => void (await at("session", { contentType: JSON_TYPE }).close()))
  await tell("follow a session", async () => {
    const types = []
    const connection = tanstack.durableStreamConnection({ sendUrl: `${root}/session` })
    for await (const chunk of connection.subscribe()) types.push(chunk.type)
    return types
  })
}

async function collections() {
  const validated = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
  const state = createStateSchema({ users: { schema: validated, type: "user", primaryKey: "id" } })
  const made = await DurableStream.create({ url: `${root}/users`, contentType: JSON_TYPE })
  const db = createStreamDB({ stream: made, state, live: "sse" })
  await tell("preload", () => db.preload())
  await tell("change", async () => {
    await made.append(JSON.stringify(state.users.insert({ value: { id: "1" }, headers: { txid: "t" } })))
    await db.utils.awaitTxId("t")
    return db.collections.users.size
  })
  db.close()
}

const until = async (condition) => {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 5))
}

async function documents() {
  const server = new YjsServer({ dsServerUrl, compactionThreshold: 100 })
  const baseUrl = `${await server.start()}/v1/yjs/requests`
  const join = async (awareness) => {
    const doc = new Y.Doc()
    const provider = new YjsProvider({ doc, baseUrl, docId: "a/page", awareness: awareness && new Awareness(doc) })
    await until(() => provider.synced)
    return { doc, provider, text: doc.getText("page") }
  }
  await tell("edit", async () => {
    const editors = [await join(true), await join(true)]
    editors.forEach(({ text }, number) => text.insert(0, `${number}`.repeat(80)))
    await until(() => editors.every(({ text }) => text.length === 160))
    editors.forEach(({ provider }, number) => provider.awareness.setLocalState({ number }))
    await until(() => editors.every(({ provider }) => provider.awareness.getStates().size === 2))
    await until(async () => {
      const answer = await fetch(`${baseUrl}/docs/a/page?offset=snapshot`, { redirect: "manual" })
      return answer.headers.get("location").includes("_snapshot")
    })
    editors.push(await join(false))
    const read = editors[2].text.length
    for (const { provider } of editors) provider.destroy()
    return read
  })
  await server.stop()
}

// As `@durable-streams/proxy` stores what it fetches; that package is not published.
async function proxied() {
  const url = `${root}/3f0c6c52-5c2c-4bdb-8d1a-6e3fbe6f1d8a`
  const octets = { "Content-Type": "application/octet-stream" }
  const requests = [
    ["HEAD"],
    ["PUT", { ...octets, "Stream-TTL": "86400" }],
    ["POST", octets, "S\u0000\u0000\u0000\u0001{}"],
    ["POST", { ...octets, "Content-Length": "2" }, new Uint8Array([68, 255])],
    ["HEAD"],
    ["GET", { Accept: "text/event-stream" }, undefined, "?offset=-1"],
    ["POST", { "Stream-Closed": "true", "Content-Length": "0" }],
    ["HEAD"],
    ["POST", octets, "late"],
    ["GET", { Accept: "text/event-stream" }, undefined, "?offset=-1&live=sse"],
    ["DELETE"],
    ["DELETE"],
  ]
  for (const [method, headers, body, query = ""] of requests) {
    await tell(`proxy: ${method}`, async () => {
      const answer = await fetch(url + query, { method, headers, body })
      await answer.arrayBuffer()
      return answer.status
    })
  }
}

await handles()
await kinds()
await methods()
await producers()
await transports()
await proxied()
await collections()
await documents()
process.exit(0)
