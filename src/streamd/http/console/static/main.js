// The frame of the console: who is signed in, the navigation, and the page for the address.
import { addressOf, parseAddress } from "./address.js"
import { ApiError, hasToken, isReached, may, mayAnywhere, news, operate, resume, session, signOut } from "./api.js"
import { Audit } from "./audit.js"
import { Bucket, Buckets } from "./buckets.js"
import { Cold } from "./cold.js"
import { Limits } from "./limits.js"
import { Operation, Operations } from "./operations.js"
import { Overview } from "./overview.js"
import { Help, Palette, useKeys } from "./palette.js"
import { asError } from "./polling.js"
import { html, render, useEffect, useErrorBoundary, useLayoutEffect, useState } from "./preact-htm.js"
import { SignIn } from "./signin.js"
import { StreamPage } from "./stream.js"
import { SubscriptionPage } from "./subscription.js"
import { Subscriptions } from "./subscriptions.js"
import { Tokens, mayAdminister } from "./tokens.js"
import { Failure } from "./views.js"

/** @typedef {import("./address.js").Address} Address */
/** @typedef {{title?: string, of?: string, view: (given: {address: Address}) => import("./preact-htm.js").View, isOffered?: () => boolean}} Page */

/** The pages by the first word of their addresses. Those with a `title` are in the navigation; others are part `of` one. @type {Record<string, Page>} */
const PAGES = {
  overview: { title: "Overview", view: Overview },
  buckets: { title: "Streams", view: Buckets },
  bucket: { of: "buckets", view: Bucket },
  stream: { of: "buckets", view: StreamPage },
  subscriptions: { title: "Subscriptions", view: Subscriptions, isOffered: () => mayAnywhere("subscribe") },
  subscription: { of: "subscriptions", view: SubscriptionPage },
  tokens: { title: "Tokens", view: Tokens, isOffered: () => mayAdminister() },
  limits: { title: "Limits", view: Limits, isOffered: () => may("operate", "cluster/limits") },
  cold: { title: "Cold store", view: Cold, isOffered: () => may("operate", "cluster/cold") },
  operations: { title: "Operations", view: Operations, isOffered: () => may("operate", "cluster/operations") },
  operation: { of: "operations", view: Operation },
  audit: { title: "Audit trail", view: Audit, isOffered: mayAudit },
}
/** Without a trail to read, those may know of it that could configure it. */
function mayAudit() {
  const name = session().audit_stream
  return name === null ? mayAdminister() : may("read", name)
}

const THEMES = ["auto", "light", "dark"]
const THEME = "streamd.theme"
const RETRY_MS = 1000

function Console() {
  const [state, setState] = useState(/** @type {"starting" | "out" | "in"} */ ("starting"))
  const [error, setError] = useState(/** @type {ApiError | null} */ (null))
  const [why, setWhy] = useState("")
  useEffect(() => {
    const start = async () => {
      try {
        await resume()
        setState("in")
      } catch (failed) {
        const refused = asError(failed)
        if (refused.status === 401) setState("out")
        else {
          setError(refused)
          setTimeout(start, RETRY_MS)
        }
      }
    }
    const leave = () => {
      setWhy("You are signed out: the token is no longer valid, or you left.")
      setState("out")
    }
    news.addEventListener("leave", leave)
    start()
    return () => news.removeEventListener("leave", leave)
  }, [])
  if (state === "starting") return html`<main><${Failure} error=${error} /></main>`
  return state === "in" ? html`<${Frame} />` : html`<${SignIn} why=${why} onDone=${() => setState("in")} />`
}

function Frame() {
  const [address, setAddress] = useState(() => parseAddress(location.hash))
  const [dialog, setDialog] = useState("")
  // At once: the address may change as soon as the frame is seen.
  useLayoutEffect(() => {
    const changed = () => {
      setAddress(parseAddress(location.hash))
      setDialog("")
    }
    window.addEventListener("hashchange", changed)
    return () => window.removeEventListener("hashchange", changed)
  }, [])
  useKeys({ palette: () => setDialog("palette"), help: () => setDialog("help") })
  const page = Object.hasOwn(PAGES, address.page) ? PAGES[address.page] : undefined
  const section = page?.of ?? address.page
  const { cluster_name: cluster, node_id: node, version } = session()
  useEffect(() => {
    document.title = [...[...address.parts].reverse(), page && PAGES[section]?.title, "streamd"].filter(Boolean).join(" – ")
  }, [address])
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => (event.preventDefault(), document.getElementById("main")?.focus())}>To the content</a>
    <header class="frame">
      <b class="brand">${cluster ?? "streamd"} <small>node ${node}, ${version}</small></b>
      <nav aria-label="Pages">
        ${offered().map(([id, { title }]) => html`<a key=${id} href=${addressOf(id)} aria-current=${id === section ? "page" : null}>${title}</a>`)}
      </nav>
      <span class="user">
        <button onClick=${() => setDialog("palette")}>Go to <kbd>/</kbd></button>
        <button onClick=${() => setDialog("help")} aria-label="Keys">?</button>
        <${Theme} />
        ${session().name && html`<span class="name">${session().name}</span>`}
        ${hasToken()
          ? html`<button onClick=${signOut}>Sign out</button>`
          : html`<button onClick=${() => signOut()}>Sign in</button>`}
      </span>
    </header>
    <${Reach} />
    <main id="main" tabindex="-1"><${Guarded} key=${location.hash.split("?")[0]} page=${page} address=${address} /></main>
    ${dialog === "palette" && html`<${Palette} pages=${destinations()} onClose=${() => setDialog("")} />`}
    ${dialog === "help" && html`<${Help} onClose=${() => setDialog("")} />`}
  `
}

/** @returns {[string, Page][]} */
function offered() {
  return Object.entries(PAGES).filter(([, page]) => page.title && (page.isOffered?.() ?? true))
}

function destinations() {
  return offered().map(([id, { title = "" }]) => ({ title, address: addressOf(id) }))
}

/** A page; a mistake of ours in it must not take the frame along. @param {{page: Page | undefined, address: Address}} given */
function Guarded({ page, address }) {
  const [failed] = useErrorBoundary((error) => console.error(error))
  if (failed) return html`<p class="failure" role="alert">This page failed: ${String(failed)}. Load it again.</p>`
  if (!page) return html`<h1>There is no such page</h1><p><a href="#/overview">To the overview</a></p>`
  return html`<${page.view} address=${address} />`
}

/** Says so while the node does not answer, and asks until it does. */
function Reach() {
  const [reached, setReached] = useState(isReached())
  useEffect(() => {
    let timer = 0
    const ask = () => {
      if (isReached()) return
      operate("healthz").catch(() => {})
      timer = window.setTimeout(ask, RETRY_MS)
    }
    const changed = () => {
      setReached(isReached())
      clearTimeout(timer)
      timer = window.setTimeout(ask, RETRY_MS)
    }
    news.addEventListener("reach", changed)
    return () => {
      clearTimeout(timer)
      news.removeEventListener("reach", changed)
    }
  }, [])
  return html`<div role="status">
    ${!reached && html`<p class="unreached">The node does not answer. What you see is what it said last; trying again …</p>`}
  </div>`
}

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem(THEME) ?? "auto")
  useEffect(() => {
    document.documentElement.dataset.theme = theme
    localStorage.setItem(THEME, theme)
    document.dispatchEvent(new Event("themechange"))
  }, [theme])
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "auto"
  return html`<button onClick=${() => setTheme(next)} title="Colours: ${theme}"><span class="half"></span>${theme}<span class="unseen"> colours</span></button>`
}

const place = document.getElementById("console")
if (place) render(html`<${Console} />`, place)
