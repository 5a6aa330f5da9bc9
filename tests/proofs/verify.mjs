// Verifies what each line of input has, an array of JSON: [WHAT, TRUSTED KEY, FILE …] with files in
// base64. Answers with a line of JSON: what was proved, or why it was not.
import { createInterface } from "node:readline"
import { NotProved, verifyHeads, verifyRecord } from "../../examples/verify/verify.js"

const base64 = (bytes) => Buffer.from(bytes).toString("base64")
const shown = ({ root, ...head }) => ({ ...head, root: base64(root) })

async function verified(what, trusted, ...files) {
  const contents = files.map((file) => new Uint8Array(Buffer.from(file, "base64")))
  try {
    if (what === "heads") return { heads: (await verifyHeads(...contents, trusted)).map(shown) }
    const { record, head, ...rest } = await verifyRecord(...contents, trusted)
    return { ...rest, record: base64(record), head: shown(head) }
  } catch (error) {
    if (error instanceof NotProved) return { refused: error.message }
    throw error
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await verified(...JSON.parse(line))))
}
