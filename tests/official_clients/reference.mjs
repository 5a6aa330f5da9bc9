// Serves the reference server in memory until the end of standard input; prints its port.
import { DurableStreamTestServer } from "@durable-streams/server"

const server = new DurableStreamTestServer({ host: "127.0.0.1", port: 0 })
console.log(new URL(await server.start()).port)
process.stdin.on("end", () => process.exit(0)).resume()
