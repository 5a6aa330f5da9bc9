// Prints each message of a stream, live, until it is closed. When the client stops trying, the read
// begins again at the last offset, as its documentation requires.
import { stream } from "@durable-streams/client"

const [url, live] = process.argv.slice(2)
let offset = "-1"
for (let closed = false; !closed; ) {
  const response = await stream({ url, live, offset })
  try {
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
