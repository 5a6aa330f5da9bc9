// Prints the progress of a job with the official client: node follow.mjs URL
import { stream } from "@durable-streams/client"

const response = await stream({ url: process.argv[2], offset: "-1", live: true, json: true })
for await (const { done, of } of response.jsonStream()) console.log(`${done} of ${of}`)
