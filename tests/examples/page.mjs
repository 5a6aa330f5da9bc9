// Pages in Chromium. Prints `ready`, then carries out each line of input, an array of JSON, and
// prints `done` when that is done: [PAGE, ORDER, OPERANDS …], where PAGE is a number of the caller's
// choice. Some orders are questions: their answer is printed instead, as JSON; and `failed:` with the
// reason, where a page cannot carry out an order. Orders to several
// pages may be under way at once. Ends with its input.
//
// Called with the folder of Chromium, one for the browser's own files, and further arguments.
import { readFile } from "node:fs/promises"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import puppeteer from "puppeteer-core"

const [unpacked, home, ...more] = process.argv.slice(2)

// All of them: neither those of Puppeteer nor those that Chromium's package proposes, which turn off
// the rules for origins (--disable-web-security) and put all pages into one process.
const browser = await puppeteer.launch({
  ignoreDefaultArgs: true,
  args: [
    "--headless",
    "--site-per-process",
    // The sandbox protects the machine from a page, not one page from another. Chromium has none
    // where it is started by root, and in many containers.
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage", // Containers have little of it.
    // Pages behind others run as fast as they.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    // It calls nobody of its own accord.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
    // Origins other than this machine's: https://www.rfc-editor.org/rfc/rfc6761#section-6.4
    "--host-resolver-rules=MAP *.example 127.0.0.1",
    `--user-data-dir=${join(home, "profile")}`,
    ...more,
    "about:blank",
  ],
  env: {
    ...process.env,
    HOME: home,
    LC_ALL: "en_US.UTF-8",
    TMPDIR: home,
    FONTCONFIG_FILE: fileURLToPath(new URL("fonts.conf", import.meta.url)),
    LD_LIBRARY_PATH: join(unpacked, "al2023", "lib"),
  },
  executablePath: join(unpacked, "chromium"),
  pipe: true, // Chromium ends with this process, however that ends.
})
const pages = new Map()

async function page(number) {
  if (!pages.has(number)) {
    const page = await browser.newPage()
    page.setDefaultTimeout(45_000)
    page.on("pageerror", (error) => console.error(error))
    page.on("console", (message) => message.type() === "error" && console.error(message.text()))
    pages.set(number, page)
  }
  return pages.get(number)
}

const orders = {
  open: (page, url) => page.goto(url),
  reload: (page) => page.reload(),
  offline: (page, offline) => page.setOfflineMode(offline),
  press: (page, key) => page.keyboard.press(key),
  // On the element itself: at its place there may be another one by then, while a page is drawn.
  click: async (page, selector) => {
    const found = await page.waitForSelector(selector)
    await found.evaluate((element) => element.click())
  },
  resize: (page, width, height) => page.setViewport({ width, height }),
  // Media features, such as ["prefers-color-scheme", "dark"].
  prefer: (page, name, value) => page.emulateMediaFeatures([{ name, value }]),
  screenshot: (page, path) => page.screenshot({ path, fullPage: true }),
  // Run a script in the page, whatever the page's policy says of scripts.
  include: async (page, path) => {
    await page.evaluate(await readFile(path, "utf8"))
  },
  // Wait until an expression of JavaScript is true in the page.
  until: (page, expression) => page.waitForFunction(expression),
  type: async (page, selector, text) => {
    await page.waitForSelector(selector)
    await page.type(selector, text)
  },
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
}
const questions = {
  text: (page, selector) => page.$eval(selector, (found) => found.value ?? found.textContent),
  // What an expression is, or what its promise becomes, to the page's own scripts.
  evaluate: (page, expression) => page.evaluate(expression),
}

async function obey(number, order, ...operands) {
  const asked = order in questions
  try {
    const answer = await (asked ? questions : orders)[order](await page(number), ...operands)
    console.log(asked ? JSON.stringify(answer) : "done")
  } catch (error) {
    console.log(`failed: ${String(error).replaceAll("\n", " ")}`)
  }
}

console.log("ready")
for await (const line of createInterface({ input: process.stdin })) obey(...JSON.parse(line))
await browser.close()
