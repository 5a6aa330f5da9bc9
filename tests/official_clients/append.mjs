// Appends each line of standard input, one JSON value, and says so when it is acknowledged.
import { createInterface } from "node:readline"
import { DurableStream } from "@durable-streams/client"

const stream = new DurableStream({ url: process.argv[2], contentType: "application/json" })
for await (const line of createInterface({ input: process.stdin })) {
  await stream.append(line)
  console.log("acknowledged")
}
