// One command on a stream, as `@durable-streams/cli` does it: create, write (standard input), batch (each
// element of a JSON array), read (to its end, live), delete. That package is not published, only the
// client that it calls.
import { DurableStream } from "@durable-streams/client"

const [command, url, contentType = "application/octet-stream"] = process.argv.slice(2)

const input = async () => {
  const chunks = []
  for await (const chunk of process.stdin) chunks.push(chunk)
  return Buffer.concat(chunks)
}

const commands = {
  create: () => DurableStream.create({ url, contentType }),
  write: async () => {
    const stream = new DurableStream({ url, contentType })
    await stream.append(contentType === "application/json" ? (await input()).toString() : await input())
  },
  batch: async () => {
    const stream = new DurableStream({ url, contentType })
    for (const message of JSON.parse(await input())) await stream.append(JSON.stringify(message))
  },
  read: async () => {
    const response = await new DurableStream({ url }).stream({ live: true })
    for await (const chunk of response.bodyStream()) process.stdout.write(chunk)
  },
  delete: () => new DurableStream({ url }).delete(),
}

try {
  await commands[command]()
} catch (error) {
  console.error(error.message)
  process.exitCode = 1
}
