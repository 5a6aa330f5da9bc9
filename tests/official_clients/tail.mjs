// Prints each message of a stream, live, until it is closed. When the client stops trying, the read
// begins again at the last offset, as its documentation requires.
import { readFileSync } from "node:fs"
import { stream } from "@durable-streams/client"

const [url, live, tokenFile] = process.argv.slice(2)
// Asked before each request, so that a token may be renewed.
const headers = tokenFile
  ? { Authorization: () => `Bearer ${readFileSync(tokenFile, "utf8")}` }
  : undefined
let offset = "-1"
for (let closed = false; !closed; ) {
  try {
    const response = await stream({ url, live, offset, headers })
    await new Promise((resolve, reject) => {
      response.subscribeJson((batch) => {
        offset = batch.offset
        for (const item of batch.items) console.log(JSON.stringify(item))
      })
      response.closed.then(resolve, reject)
    })
    closed = response.streamClosed
  } catch (error) {
    console.error(`again from ${offset}: ${error}`)
  }
}
console.log("closed")
