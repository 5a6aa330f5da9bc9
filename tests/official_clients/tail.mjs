// Prints each message of a stream, live, until it is closed. What the client gives up on is begun
// anew at the last offset, as its documentation asks for.
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
