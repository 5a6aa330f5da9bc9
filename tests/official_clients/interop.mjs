// Shares streams with another writer. Each line of input is a JSON list, `[url, seed, count, resets]`:
// follow the stream with `MaterializedState`, and without resets with `createStreamDB`, append `count`
// random changes, and when both writers have finished print the state, the rows, and the transactions
// as JSON.
import { createInterface } from "node:readline"
import { DurableStream } from "@durable-streams/client"
import { MaterializedState, createStateSchema, isChangeEvent, isControlEvent } from "@durable-streams/state"
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

function randomEvent(random, number, resets) {
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
  if (resets && random() < 0.05) return { headers: { control: "reset" } }
  return state.users[helper]({ key, value, oldValue: value, headers })
}

const seen = new Set()

function followed() {
  const materialized = new MaterializedState()
  const onEvent = (event) => {
    if (isChangeEvent(event)) {
      materialized.apply(event)
      if (event.headers.txid) seen.add(event.headers.txid)
    } else if (isControlEvent(event) && event.headers.control === "reset") {
      materialized.clear()
    }
  }
  return { materialized, onEvent }
}

/** With `MaterializedState` alone: `createStreamDB` 0.3.1 fails at a reset. */
async function followState(stream) {
  const { materialized, onEvent } = followed()
  const response = await stream.stream({ live: true, json: true })
  response.subscribeJson(({ items }) => items.forEach(onEvent))
  const both = async () => {
    const end = Date.now() + DEADLINE_MS
    const isDone = () => seen.has("node-done") && seen.has("python-done")
    while (!isDone() && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, 5))
  }
  return { materialized, both, rows: () => null, close: () => response.cancel() }
}

async function followRows(stream) {
  const { materialized, onEvent } = followed()
  const db = createStreamDB({ stream, state, onEvent })
  await db.preload()
  const both = async () => {
    await db.utils.awaitTxId("node-done", DEADLINE_MS)
    await db.utils.awaitTxId("python-done", DEADLINE_MS)
  }
  // Without what the collections add: a sequence number, and properties such as `$synced`.
  const isOwn = ([name]) => name !== "_seq" && !name.startsWith("$")
  const plain = (row) => Object.fromEntries(Object.entries(row).filter(isOwn))
  const rows = () => Object.fromEntries(db.collections.users.toArray.map((row) => [row.id, plain(row)]))
  return { materialized, both, rows, close: () => db.close() }
}

async function share(url, seed, count, resets) {
  const stream = new DurableStream({ url, contentType: "application/json" })
  seen.clear()
  const follower = await (resets ? followState(stream) : followRows(stream))
  const random = randomFrom(seed)
  for (let number = 0; number < count; number++) {
    await stream.append(JSON.stringify(randomEvent(random, number, resets)))
  }
  const done = state.users.delete({ key: "done", headers: { txid: "node-done" } })
  await stream.append(JSON.stringify(done))
  await follower.both()
  const of = (type) => Object.fromEntries(follower.materialized.getType(type))
  const found = { rows: follower.rows(), state: { user: of("user"), note: of("note") }, txids: [...seen] }
  follower.close()
  return JSON.stringify(found)
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(await share(...JSON.parse(line)))
}
process.exit(0)
