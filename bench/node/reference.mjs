// Serves the Node reference server until SIGTERM: in memory, or from a directory when one is given.
import { parseArgs } from "node:util"
import { DurableStreamTestServer } from "@durable-streams/server"

const { values } = parseArgs({
  options: { port: { type: "string" }, "data-dir": { type: "string" } },
})

// Whatever is not given here keeps the package's default: that is what a user of it would run.
const server = new DurableStreamTestServer({
  host: "127.0.0.1",
  port: Number(values.port),
  ...(values["data-dir"] && { dataDir: values["data-dir"] }),
})

process.once("SIGTERM", async () => {
  await server.stop()
  process.exit(0)
})
await server.start()
