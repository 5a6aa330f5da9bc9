// Shares streams with another writer. Each line of input is `URL SEED COUNT`: follow the stream with
// `createStreamDB` and `MaterializedState`, append COUNT random changes, and when both writers have
// finished print the rows and the state as JSON.
import { createInterface } from "node:readline"
import { DurableStream } from "@durable-streams/client"
import { MaterializedState, createStateSchema, isChangeEvent } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const schema = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const state = createStateSchema({ users: { schema, type: "user", primaryKey: "id" } })
const DEADLINE_MS = 60_000

function randomFrom(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }
}

function randomEvent(random, number) {
  const pick = (list) => list[Math.floor(random() * list.length)]
  const key = pick(["1", "2", "3", "ключ", "a/b c", "🙂"])
  const parts = [null, true, 0.1, 1e21, -5, "ü", "🙂".slice(0, 1), "\u0000", [1, ["x"]], { a: {} }]
  // All fields each time: TanStack DB merges the fields of an update into the row (rowUpdateMode),
  // where the specification replaces the value.
  const value = { by: "node", number, part: pick(parts) }
  if (random() < 0.5) value.id = key
  const headers = pick([{}, { txid: `node-${number}` }, { timestamp: "2030-01-01T00:00:00Z" }])
  const helper = pick(["insert", "update", "upsert", "delete"])
  if (random() < 0.2) {
    const varied = { [pick(["x", "y"])]: pick(parts) }
    return { ...state.users[helper]({ key, value: varied, headers }), type: "note" }
  }
  if (random() < 0.05) return { headers: { control: pick(["snapshot-start", "snapshot-end"]) } }
  return state.users[helper]({ key, value, oldValue: value, headers })
}

async function share(url, seed, count) {
  const stream = new DurableStream({ url, contentType: "application/json" })
  const materialized = new MaterializedState()
  const onEvent = (event) => isChangeEvent(event) && materialized.apply(event)
  const db = createStreamDB({ stream, state, onEvent })
  await db.preload()
  const random = randomFrom(seed)
  for (let number = 0; number < count; number++) {
    await stream.append(JSON.stringify(randomEvent(random, number)))
  }
  const done = state.users.delete({ key: "done", headers: { txid: "node-done" } })
  await stream.append(JSON.stringify(done))
  await db.utils.awaitTxId("node-done", DEADLINE_MS)
  await db.utils.awaitTxId("python-done", DEADLINE_MS)
  // Without what the collections add: a sequence number, and properties such as `$synced`.
  const isOwn = ([name]) => name !== "_seq" && !name.startsWith("$")
  const plain = (row) => Object.fromEntries(Object.entries(row).filter(isOwn))
  const rows = db.collections.users.toArray.map((row) => [row.id, plain(row)])
  const of = (type) => Object.fromEntries(materialized.getType(type))
  const found = { rows: Object.fromEntries(rows), state: { user: of("user"), note: of("note") } }
  db.close()
  return JSON.stringify(found)
}

for await (const line of createInterface({ input: process.stdin })) {
  const [url, seed, count] = line.split(" ")
  console.log(await share(url, Number(seed), Number(count)))
}
process.exit(0)
