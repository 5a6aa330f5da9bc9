// Keeps a collection of `createStreamDB` in step with a stream. Prints the rows, and the offset of the
// last batch, whenever they change; a line from standard input is appended.
import { createInterface } from "node:readline"
import { DurableStream } from "@durable-streams/client"
import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const [url, live] = process.argv.slice(2)
const schema = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const state = createStateSchema({ users: { schema, type: "user", primaryKey: "id" } })
const stream = new DurableStream({ url, contentType: "application/json" })
let offset
const db = createStreamDB({ stream, live, state, onBatch: (batch) => (offset = batch.offset) })
const { users } = db.collections
users.subscribeChanges(() => {
  const rows = users.toArray.map(({ id, name }) => `${id}=${name}`)
  console.log(`${rows.sort().join(" ")} @${offset}`)
})
await db.preload()
for await (const line of createInterface({ input: process.stdin })) await stream.append(line)
db.close()
process.exit(0)
