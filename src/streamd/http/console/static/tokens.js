// The page `tokens`.
import { may, operate } from "./api.js"
import { SERVER } from "./scopes.js"
import { Form, Secret } from "./dialogs.js"
import { time } from "./format.js"
import { usePoll } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { Badge, Empty, Failure, Table } from "./views.js"

/** @typedef {{id: string, name: string, scopes: string[], created_at_ms: number, expires_at_ms: number | null, expired: boolean, former_secret_until_ms: number | null}} Token */

export const mayAdminister = () => may("admin", SERVER)

export function Tokens() {
  const { data, error, reload } = usePoll((signal) => operate("auth/tokens", { signal }), 0)
  const [asked, setAsked] = useState(/** @type {{act: string, token: Token | null}} */ ({ act: "", token: null }))
  const [secret, setSecret] = useState("")
  const close = () => setAsked({ act: "", token: null })
  const made = (/** @type {any} */ found) => {
    close()
    setSecret(found?.token ?? "")
    reload()
  }
  /** @type {Token[]} */
  const tokens = data?.tokens ?? []
  return html`
    <header class="title"><h1>Tokens</h1>
      <button onClick=${() => setAsked({ act: "create", token: null })}>Create a token</button></header>
    <${Failure} error=${error} />
    ${error?.status === 401 && html`<p>Tokens are administered with a token, also where nothing else needs one.
      Sign in with the node's root token (<code>streamd token bootstrap --offline</code>).</p>`}
    ${data && tokens.length === 0 && html`<${Empty} title="There is no token"><p>Create one for each application.</p><//>`}
    ${tokens.length > 0 &&
    html`<${Table} label="Tokens" rows=${tokens} idOf=${(/** @type {Token} */ one) => one.id}
      columns=${columns((act, token) => setAsked({ act, token }))} />`}
    ${asked.act && html`<${Question} ...${asked} onClose=${close} onDone=${made} />`}
    ${secret && html`<${Secret} title="The secret" secret=${secret} onClose=${() => setSecret("")} />`}
  `
}

/** @param {(act: string, token: Token) => void} ask @returns {import("./views.js").Column[]} */
function columns(ask) {
  return [
    { title: "Name", show: (one) => html`<b>${one.name}</b>`, sort: (one) => one.name },
    { title: "Scopes", show: (one) => html`<ul class="scopes">${one.scopes.map((/** @type {string} */ text) => html`<li key=${text}><code>${text}</code></li>`)}</ul>` },
    { title: "Created", whole: true, show: (one) => time(one.created_at_ms), sort: (one) => one.created_at_ms },
    {
      title: "Ends",
      whole: true,
      show: (one) => (one.expired ? html`<${Badge} kind="bad">expired<//>` : one.expires_at_ms === null ? "never" : time(one.expires_at_ms)),
      sort: (one) => one.expires_at_ms ?? Infinity,
    },
    {
      title: "Actions",
      show: (one) => html`
        ${one.former_secret_until_ms && html`<small>former secret until ${time(one.former_secret_until_ms)}</small>`}
        <button onClick=${() => ask("rotate", one)} aria-label="Rotate ${one.name}">Rotate</button>
        <button class="danger" onClick=${() => ask("revoke", one)} aria-label="Revoke ${one.name}">Revoke</button>`,
    },
  ]
}

/** @param {{act: string, token: Token | null, onClose: () => void, onDone: (found: any) => void}} given */
function Question({ act, token, onClose, onDone }) {
  const common = { onClose, onDone }
  const path = `auth/tokens/${encodeURIComponent(token?.id ?? "")}`
  if (act === "create") {
    const create = (/** @type {any} */ { name, scopes, expires }) =>
      operate("auth/tokens", {
        method: "POST",
        body: { name, scopes: scopes.split(/\s+/).filter(Boolean), ...(expires ? { expires_in_s: Number(expires) } : {}) },
      })
    return html`<${Form} ...${common} title="Create a token" button="Create" act=${create} fields=${[
      { name: "name", label: "Name", required: true, hint: "A-Z a-z 0-9 . _ @ -" },
      { name: "scopes", label: "Scopes, one a line", kind: "area", required: true, value: "read:agents/*",
        hint: "VERB:PATTERN, such as append:agents/run-*; verbs are read append create close delete fork snapshot subscribe list admin operate" },
      { name: "expires", label: "Ends after so many seconds", kind: "number", hint: "none: never" },
    ]} />`
  }
  if (act === "rotate") {
    const rotate = (/** @type {any} */ { overlap }) =>
      operate(`${path}/rotate`, { method: "POST", body: { overlap_s: Number(overlap) } })
    return html`<${Form} ...${common} title=${`Rotate ${token?.name}`} button="Rotate" act=${rotate} fields=${[
      { name: "overlap", label: "The present secret stays valid for so many seconds", kind: "number", value: "3600", required: true },
    ]} />`
  }
  return html`<${Form} ...${common} title=${`Revoke ${token?.name}`} button="Revoke" confirm=${token?.name}
    text=${html`<p>Its holder is refused from then on.</p>`} act=${() => operate(path, { method: "DELETE" })} />`
}
