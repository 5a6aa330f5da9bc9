// A chat with the AI SDK, as the README of `@durable-streams/aisdk-transport` builds it: an app that
// writes answers to streams at one URL and has them read at another, and pages.
import { createServer } from "node:http"
import { createDurableChatTransport, toDurableStreamResponse } from "@durable-streams/aisdk-transport"
import { AbstractChat, convertToModelMessages, stepCountIs, streamText, tool } from "ai"
import { MockLanguageModelV3 } from "ai/test"
import { z } from "zod"
import { serve, shown } from "./commands.mjs"

const [writeRoot, readRoot] = process.argv.slice(2)
// The transport leaves `closed` of a failed read without a handler: a browser logs that, Node ends.
process.on("unhandledRejection", (reason) => console.error("unhandled", reason))
const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } }

// What the model says comes from the commands `say`.
const said = new TransformStream()
const script = said.writable.getWriter()
const parts = said.readable.getReader()
const model = new MockLanguageModelV3({
  doStream: async ({ abortSignal }) => ({
    stream: new ReadableStream({
      start: (controller) => abortSignal?.addEventListener("abort", () => controller.error(abortSignal.reason)),
      async pull(controller) {
        const { value } = await parts.read()
        const part = value.type === "finish" ? { ...value, usage } : value
        controller.enqueue(part)
        if (part.type === "finish") controller.close()
      },
    }),
  }),
})

const tools = {
  weather: tool({
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => ({ city, celsius: 21 }),
  }),
}

const chats = new Map() // what the app's database would keep
let generation
const writes = []

async function answer(request, path, body) {
  if (request.method === "GET") {
    const id = path.split("/")[3]
    const chat = chats.get(id)
    if (!chat?.active) return new Response(null, { status: 204 })
    const url = `${readRoot}/${chat.active}`
    return Response.json({ streamUrl: url }, { headers: { Location: url } })
  }
  const { id, messages, mode } = JSON.parse(body)
  if (mode === "broken") return new Response("no model", { status: 500 })
  const chat = { messages, active: `${id}/${messages.length}` }
  chats.set(id, chat)
  generation = new AbortController()
  const result = streamText({
    model,
    tools,
    messages: await convertToModelMessages(messages),
    stopWhen: stepCountIs(3),
    abortSignal: generation.signal,
    maxRetries: 0,
    onError: () => {},
  })
  const source = result.toUIMessageStream({
    originalMessages: messages,
    generateMessageId: () => `answer-${messages.length}`,
    onError: (error) => `the model failed: ${error.message ?? error}`,
    onFinish: ({ messages }) => Object.assign(chat, { messages, active: undefined }),
  })
  return toDurableStreamResponse({
    source,
    mode,
    stream: { writeUrl: `${writeRoot}/${chat.active}`, readUrl: `${readRoot}/${chat.active}` },
    waitUntil: (written) => writes.push(written),
  })
}

const app = createServer(async (request, out) => {
  let body = ""
  for await (const piece of request) body += piece
  const response = await answer(request, request.url, body)
  out.writeHead(response.status, Object.fromEntries(response.headers)).end(await response.text())
})
await new Promise((resolve) => app.listen(0, "127.0.0.1", resolve))
const api = `http://127.0.0.1:${app.address().port}/api/chat`

class Page extends AbstractChat {
  constructor(id) {
    const seen = {
      status: "ready",
      error: undefined,
      messages: structuredClone(chats.get(id)?.messages ?? []),
      pushMessage: (message) => (seen.messages = [...seen.messages, message]),
      popMessage: () => (seen.messages = seen.messages.slice(0, -1)),
      replaceMessage: (index, message) => (seen.messages = seen.messages.with(index, message)),
      snapshot: structuredClone,
    }
    super({ id, transport: createDurableChatTransport({ api }), state: seen })
  }

  view() {
    const shown = this.lastMessage?.role === "assistant" ? this.lastMessage.parts : []
    const text = shown.filter(({ type }) => type === "text").map(({ text }) => text)
    const calls = shown.filter(({ type }) => type === "tool-weather")
    return {
      status: this.status,
      text: text.join(""),
      error: this.error?.message ?? null,
      tools: calls.map(({ state, input, output }) => ({ state, input, output })),
    }
  }
}

const pages = new Map()

const commands = {
  open: (name, id) => pages.set(name, new Page(id)).get(name).view(),
  send: (name, text, body) => void pages.get(name).sendMessage({ text }, { body }),
  resume: (name) => void pages.get(name).resumeStream(),
  stop: (name) => pages.get(name).stop(),
  abort: () => generation.abort(),
  say: async (...said) => {
    for (const part of said) await script.write(part)
  },
  // Answers with the page once it shows this.
  until: (name, wanted) => shown(pages.get(name), wanted),
  written: async () => (await Promise.allSettled(writes)).map(({ status }) => status),
}

await serve(commands)
