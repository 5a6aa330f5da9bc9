// Edits a Yjs document through `YjsProvider` and `YjsServer`, both as published. Prints `ready`, then
// answers each line: `write TEXT` and `join` (a reader of its own, from the snapshot on) are told when
// every reader has the text; `snapshot` waits until there is a snapshot of another offset than before.
import { createInterface } from "node:readline"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import * as Y from "yjs"

const [dsServerUrl, liveMode] = process.argv.slice(2)
const print = console.log
console.log = () => {} // The server tells of each snapshot there.
const server = new YjsServer({ dsServerUrl, compactionThreshold: 100 })
const baseUrl = `${await server.start()}/v1/yjs/editing`

const join = async () => {
  const doc = new Y.Doc()
  const provider = new YjsProvider({ doc, baseUrl, docId: "page", liveMode })
  await new Promise((resolve, reject) => {
    provider.on("synced", (synced) => synced && resolve())
    provider.on("error", reject)
  })
  return doc
}

const has = (doc, text) =>
  new Promise((resolve) => {
    const look = () => doc.getText("page").toString() === text && resolve()
    doc.on("update", look)
    look()
  })

const snapshot = async () => {
  const answer = await fetch(`${baseUrl}/docs/page?offset=snapshot`, { redirect: "manual" })
  return new URL(answer.headers.get("location"), baseUrl).searchParams.get("offset")
}

const docs = [await join()]
let text = ""
let offset = await snapshot()
print("ready")
for await (const line of createInterface({ input: process.stdin })) {
  const [order, what] = line.split(" ")
  if (order === "write") {
    docs[0].getText("page").insert(text.length, what)
    text += what
  } else if (order === "join") {
    docs.push(await join())
  } else {
    let next = offset
    while (next === offset) next = await snapshot()
    offset = next
  }
  await Promise.all(docs.map((doc) => has(doc, text)))
  print(`${docs.length} ${text.length}`)
}
process.exit(0)
