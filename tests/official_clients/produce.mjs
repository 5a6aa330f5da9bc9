// Appends each line of standard input, one JSON value, as an idempotent producer; says so when it
// is acknowledged; closes the stream at the end and prints where that is.
import { createInterface } from "node:readline"
import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const stream = await DurableStream.create({
  url: process.argv[2],
  contentType: "application/json",
})
const producer = new IdempotentProducer(stream, "writer", {
  autoClaim: true,
  onError: (error) => {
    console.error(error)
    process.exit(1)
  },
})
for await (const line of createInterface({ input: process.stdin })) {
  producer.append(line)
  await producer.flush()
  console.log("acknowledged")
}
const { finalOffset } = await producer.close()
const { offset, streamClosed } = await stream.head()
console.log(JSON.stringify({ finalOffset, offset, streamClosed }))
