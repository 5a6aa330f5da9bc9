// Asks for a token.
import { signIn } from "./api.js"
import { asError } from "./polling.js"
import { html, useState } from "./preact-htm.js"
import { Failure } from "./views.js"

/** @param {{onDone: () => void, why: string}} given */
export function SignIn({ onDone, why }) {
  const [error, setError] = useState(/** @type {import("./api.js").ApiError | null} */ (null))
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault()
    const given = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget))
    try {
      await signIn(String(given.get("token")).trim(), given.get("keep") === "on")
      onDone()
    } catch (refused) {
      setError(asError(refused))
    }
  }
  return html`<main class="signin">
    <h1>streamd</h1>
    <form onSubmit=${submit}>
      ${why && html`<p>${why}</p>`}
      <label>Token <input name="token" type="password" autocomplete="off" required autofocus /></label>
      <label><input type="checkbox" name="keep" /> Keep it until this tab is closed</label>
      <${Failure} error=${error} />
      <button class="main">Sign in</button>
    </form>
    <p><small>On a node's host, <code>streamd token bootstrap --help</code> says how to get a first one. The token stays in this page's memory. What it does not permit is not shown.</small></p>
  </main>`
}
