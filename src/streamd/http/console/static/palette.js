// The palette (`/`), the list of keys (`?`), and the arrow keys in lists.
import { addressOf, partsOf } from "./address.js"
import { ask } from "./api.js"
import { Dialog } from "./dialogs.js"
import { html, useEffect, useRef, useState } from "./preact-htm.js"

const KEYS = [
  ["/", "go to a page, a bucket or a stream"],
  ["?", "this list"],
  ["↑ ↓", "move between the rows of a list"],
  ["Enter", "open the row"],
  ["Esc", "close a dialog"],
]

/** Call back for the keys of the console, except while somebody types. @param {{palette: () => void, help: () => void}} on */
export function useKeys(on) {
  useEffect(() => {
    const pressed = (/** @type {KeyboardEvent} */ event) => {
      const target = /** @type {HTMLElement} */ (event.target)
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog")) return
      if (event.key === "/") on.palette()
      else if (event.key === "?") on.help()
      else if (event.key === "ArrowDown") move(1)
      else if (event.key === "ArrowUp") move(-1)
      else return
      event.preventDefault()
    }
    document.addEventListener("keydown", pressed)
    return () => document.removeEventListener("keydown", pressed)
  }, [])
}

/** @param {number} by */
function move(by) {
  const rows = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("main a.row"))]
  const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement))
  const next = rows[at === -1 ? (by > 0 ? 0 : rows.length - 1) : at + by]
  next?.focus()
}

/** @param {{pages: {title: string, address: string}[], onClose: () => void}} given */
export function Palette({ pages, onClose }) {
  const [typed, setTyped] = useState("")
  const [found, setFound] = useState(/** @type {{title: string, address: string}[]} */ ([]))
  const list = useRef(/** @type {HTMLElement | null} */ (null))
  useEffect(() => {
    const ending = new AbortController()
    suggestions(typed, ending.signal).then(setFound, () => setFound([]))
    return () => ending.abort()
  }, [typed])
  const word = typed.toLowerCase()
  const shown = [...pages.filter(({ title }) => title.toLowerCase().includes(word)), ...found]
  const go = (/** @type {string | undefined} */ address) => {
    if (address === undefined) return
    onClose()
    location.hash = address
  }
  const pressed = (/** @type {KeyboardEvent} */ event) => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (!way) return
    event.preventDefault()
    const links = [...(list.current?.querySelectorAll("a") ?? [])]
    const at = links.indexOf(/** @type {any} */ (document.activeElement))
    links[at + way]?.focus()
  }
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault()
    go(shown[0]?.address)
  }
  return html`<${Dialog} title="Go to" onClose=${onClose}>
    <div onKeyDown=${pressed}>
      <form onSubmit=${submit}><input autofocus aria-label="A page, a bucket, or BUCKET/STREAM" autocomplete="off" value=${typed}
        onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} /></form>
      <ul class="palette" ref=${list}>
        ${shown.map(({ title, address }) => html`<li key=${address}>
          <a href=${address} onClick=${(/** @type {Event} */ event) => (event.preventDefault(), go(address))}>${title}</a></li>`)}
      </ul>
    </div>
  <//>`
}

/** Buckets, or streams after a slash, whose names begin with what was typed. @param {string} typed @param {AbortSignal} signal */
async function suggestions(typed, signal) {
  if (typed === "") return []
  const [bucket = "", ...rest] = typed.split("/")
  if (rest.length === 0) {
    const { buckets } = await (await ask(`?limit=10&prefix=${encodeURIComponent(bucket)}`, { signal })).json()
    return buckets.map((/** @type {any} */ one) => ({ title: one.bucket_id, address: addressOf("bucket", [one.bucket_id]) }))
  }
  const query = `limit=10&prefix=${encodeURIComponent(rest.join("/"))}`
  const { streams } = await (await ask(`${encodeURIComponent(bucket)}/streams?${query}`, { signal })).json()
  return streams.map((/** @type {any} */ one) => ({
    title: `${bucket}/${one.stream_id}`,
    address: addressOf("stream", partsOf(one.path)),
  }))
}

/** @param {{onClose: () => void}} given */
export function Help({ onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="keys">${KEYS.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
    <footer><button class="main" onClick=${onClose}>Close</button></footer>
  <//>`
}
