// A chat session with TanStack AI, as the README of `@durable-streams/tanstack-ai-transport` builds
// it: an app that keeps one stream for a session, and pages.
import { createServer } from "node:http"
import { Readable } from "node:stream"
import {
  durableStreamConnection,
  materializeSnapshotFromDurableStream,
  toDurableChatSessionResponse,
} from "@durable-streams/tanstack-ai-transport"
import { chat, toolDefinition } from "@tanstack/ai"
import { ChatClient } from "@tanstack/ai-client"
import { serve, shown } from "./commands.mjs"

const [root] = process.argv.slice(2)
// The transport leaves `closed` of a failed read without a handler: a browser logs that, Node ends.
process.on("unhandledRejection", (reason) => console.error("unhandled", reason))

// What the model says comes from the commands `say`.
const said = new TransformStream()
const script = said.writable.getWriter()
const parts = said.readable.getReader()
const adapter = {
  kind: "text",
  name: "scripted",
  model: "scripted",
  async *chatStream() {
    for (;;) {
      const { value } = await parts.read()
      yield { timestamp: Date.now(), model: "scripted", ...value }
      if (value.type.startsWith("RUN_") && value.type !== "RUN_STARTED") return
    }
  },
}
const weather = toolDefinition({
  name: "weather",
  description: "The weather of a city",
  inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
}).server(async ({ city }) => ({ city, celsius: 21 }))

async function answer(request, url, body) {
  const stream = `${root}/${url.searchParams.get("id")}`
  if (request.method === "GET") {
    url.searchParams.delete("id")
    const read = await fetch(stream + url.search)
    const names = ["content-type", "stream-next-offset", "stream-cursor", "stream-up-to-date", "stream-closed"]
    const headers = names.filter((name) => read.headers.has(name)).map((name) => [name, read.headers.get(name)])
    return new Response(read.body, { status: read.status, headers })
  }
  const { messages, data } = JSON.parse(body)
  if (data?.broken) return Response.json({ error: "no model" }, { status: 500 })
  return toDurableChatSessionResponse({
    stream: { writeUrl: stream },
    newMessages: messages.slice(-1),
    responseStream: chat({ adapter, messages, tools: [weather] }),
    mode: data?.mode,
  })
}

const app = createServer(async (request, out) => {
  let body = ""
  for await (const piece of request) body += piece
  const url = new URL(request.url, "http://app")
  const response = await answer(request, url, body)
  out.writeHead(response.status, Object.fromEntries(response.headers))
  if (!response.body) return out.end()
  Readable.fromWeb(response.body).on("error", () => out.destroy()).pipe(out)
})
await new Promise((resolve) => app.listen(0, "127.0.0.1", resolve))
const base = `http://127.0.0.1:${app.address().port}`

class Page {
  constructor(id, { messages, offset } = {}) {
    this.error = null
    this.client = new ChatClient({
      id,
      connection: durableStreamConnection({
        sendUrl: `${base}/api/chat?id=${id}`,
        readUrl: `${base}/api/chat-stream?id=${id}`,
        initialOffset: offset,
      }),
      initialMessages: messages,
      onError: (error) => (this.error = error.message),
    })
    this.client.subscribe()
  }

  view() {
    const messages = this.client.getMessages()
    const of = (message, type) => message.parts.filter((part) => part.type === type)
    const calls = messages.flatMap((message) => of(message, "tool-call"))
    return {
      said: messages.map((message) => of(message, "text").map(({ content }) => content).join("")).join("|"),
      generating: this.client.getSessionGenerating(),
      connection: this.client.getConnectionStatus(),
      error: this.error,
      tools: calls.map(({ name, arguments: input, output }) => ({ name, input, output })),
    }
  }
}

const pages = new Map()
const snapshot = (id) => materializeSnapshotFromDurableStream({ readUrl: `${root}/${id}` })

const commands = {
  open: (name, id) => pages.set(name, new Page(id)).get(name).view(),
  // As a page that is rendered on the server: with what was said so far, and the offset after it.
  hydrate: async (name, id) => pages.set(name, new Page(id, await snapshot(id))).get(name).view(),
  send: (name, text, body) => void pages.get(name).client.sendMessage(text, body),
  stop: (name) => pages.get(name).client.stop(),
  close: (name) => pages.get(name).client.unsubscribe(),
  reopen: (name) => pages.get(name).client.subscribe({ restart: true }),
  say: async (...said) => {
    for (const part of said) await script.write(part)
  },
  // Answers with the page once it shows this.
  until: (name, wanted) => shown(pages.get(name), wanted),
}

await serve(commands)
