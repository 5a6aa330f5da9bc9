// What scripts that take commands share. Each line of input is a JSON list, a command and its arguments;
// each is answered by a line of JSON.
import { createInterface } from "node:readline"

const PATIENCE_MS = 45_000
const POLL_MS = 5
const print = console.log

/** Waits until a condition holds, at most as long as a very busy machine needs. */
export async function patiently(condition) {
  const end = Date.now() + PATIENCE_MS
  while (!condition() && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, POLL_MS))
}

/** The view of a page once it shows what is wanted. */
export async function shown(page, wanted) {
  await patiently(() => Object.entries(wanted).every(([key, value]) => page.view()[key] === value))
  return page.view()
}

export async function serve(commands) {
  for await (const line of createInterface({ input: process.stdin })) {
    const [command, ...given] = JSON.parse(line)
    print(JSON.stringify((await commands[command](...given)) ?? null))
  }
  process.exit(0)
}
