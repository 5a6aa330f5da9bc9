// A page in Chromium. Prints `ready`, then carries out each line of input, an array of JSON, and
// prints `done` after it:
// ["open", URL], ["reload"], ["type", SELECTOR, TEXT], which presses Enter after the text, and
// ["wait", SELECTOR, TEXTS] until the elements that it selects have these texts. Ends with its input.
import { createInterface } from "node:readline"
import chromium from "@sparticuz/chromium"
import puppeteer from "puppeteer-core"

const browser = await puppeteer.launch({
  args: puppeteer.defaultArgs({ args: chromium.args, headless: "shell" }),
  executablePath: await chromium.executablePath(),
  headless: "shell",
  pipe: true, // Chromium ends with this process, however that ends.
})
const page = await browser.newPage()
page.setDefaultTimeout(60_000)

const orders = {
  open: (url) => page.goto(url),
  reload: () => page.reload(),
  type: async (selector, text) => {
    await page.type(selector, text)
    await page.keyboard.press("Enter")
  },
  wait: (selector, texts) =>
    page.waitForFunction(
      (selector, texts) => {
        const shown = [...document.querySelectorAll(selector)].map((each) => each.textContent)
        return JSON.stringify(shown) === JSON.stringify(texts)
      },
      {},
      selector,
      texts,
    ),
}

console.log("ready")
for await (const line of createInterface({ input: process.stdin })) {
  const [order, ...operands] = JSON.parse(line)
  await orders[order](...operands)
  console.log("done")
}
await browser.close()
