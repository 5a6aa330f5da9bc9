import diagnostics from "node:diagnostics_channel"
import { runConformanceTests } from "@durable-streams/server-conformance-tests"
import { Agent, setGlobalDispatcher } from "undici"
import { afterAll, expect } from "vitest"

const baseUrl = process.env.STREAMD_TEST_URL!

// Over TLS the server must speak HTTP/2. The certificate is the test's own.
if (baseUrl.startsWith("https:")) {
  const spoken = new Set<unknown>()
  diagnostics.subscribe("undici:client:connected", (message: any) => {
    spoken.add(message.socket.alpnProtocol)
  })
  setGlobalDispatcher(new Agent({ allowH2: true, connect: { rejectUnauthorized: false } }))
  afterAll(() => expect([...spoken]).toEqual(["h2"]))
}

// A token in every request that has none of its own, for a server that requires one.
const token = process.env.STREAMD_TEST_TOKEN
if (token) {
  const plain = globalThis.fetch
  globalThis.fetch = (target, init = {}) => {
    const headers = new Headers(init.headers)
    if (!headers.has("Authorization")) headers.set("Authorization", `Bearer ${token}`)
    return plain(target, { ...init, headers })
  }
}

runConformanceTests({ baseUrl, subscriptions: true })
