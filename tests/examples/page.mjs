// Pages in Chromium. Prints `ready`, then carries out each line of input, an array of JSON, and
// prints `done` when that is done: [PAGE, ORDER, OPERANDS …], where PAGE is a number of the caller's
// choice. Orders to several pages may be under way at once. Ends with its input.
import { createInterface } from "node:readline"
import chromium from "@sparticuz/chromium"
import puppeteer from "puppeteer-core"

const browser = await puppeteer.launch({
  args: puppeteer.defaultArgs({ args: chromium.args, headless: "shell" }),
  executablePath: await chromium.executablePath(),
  headless: "shell",
  pipe: true, // Chromium ends with this process, however that ends.
})
const pages = new Map()

async function page(number) {
  if (!pages.has(number)) {
    const page = await browser.newPage()
    page.setDefaultTimeout(60_000)
    pages.set(number, page)
  }
  return pages.get(number)
}

const orders = {
  open: (page, url) => page.goto(url),
  reload: (page) => page.reload(),
  offline: (page, offline) => page.setOfflineMode(offline),
  press: (page, key) => page.keyboard.press(key),
  type: (page, selector, text) => page.type(selector, text),
  // Wait until the elements that the selector finds have these texts, and no other is there.
  wait: (page, selector, texts) =>
    page.waitForFunction(
      (selector, texts) => {
        const shown = [...document.querySelectorAll(selector)].map((each) =>
          each instanceof HTMLTextAreaElement ? each.value : each.textContent,
        )
        return JSON.stringify(shown) === JSON.stringify(texts)
      },
      {},
      selector,
      texts,
    ),
  text: (page, selector) => page.$eval(selector, (found) => found.value ?? found.textContent),
}

async function obey(number, order, ...operands) {
  const answer = await orders[order](await page(number), ...operands)
  console.log(order === "text" ? JSON.stringify(answer) : "done")
}

console.log("ready")
for await (const line of createInterface({ input: process.stdin })) obey(...JSON.parse(line))
await browser.close()
