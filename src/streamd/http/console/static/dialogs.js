// Dialogs: questions before something happens, and their answers.
import { asError } from "./polling.js"
import { Copyable, Failure } from "./views.js"
import { html, useLayoutEffect, useRef, useState } from "./preact-htm.js"

/** @typedef {import("./preact-htm.js").View} View */
/** @typedef {{name: string, label: string, kind?: "text" | "area" | "number" | "choice" | "check", value?: string, choices?: string[], hint?: string, required?: boolean}} Field */

/** A dialog, above all else until it is closed. @param {{title: string, onClose: () => void, children?: View}} given */
export function Dialog({ title, onClose, children }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null))
  // At once: a key that is pressed as soon as the dialog is seen is for the dialog.
  useLayoutEffect(() => {
    const dialog = element.current
    dialog?.showModal()
    return () => dialog?.close() // Which gives the focus back to what opened it.
  }, [])
  const closed = () => element.current && onClose()
  return html`<dialog ref=${element} aria-label=${title} onClose=${closed}>
    <header><h2>${title}</h2></header>
    ${children}
  </dialog>`
}

/**
 * A form that does something. `onDone` gets what `act` returned. With `confirm` the button stays
 * locked until that text is typed.
 * @param {{title: string, text?: View, fields?: Field[], button: string, confirm?: string,
 *   act: (values: Record<string, string>) => Promise<any>, onDone: (found: any) => void, onClose: () => void}} given
 */
export function Form({ title, text, fields = [], button, confirm, act, onDone, onClose }) {
  const [error, setError] = useState(/** @type {import("./api.js").ApiError | null} */ (null))
  const [isBusy, setBusy] = useState(false)
  const [typed, setTyped] = useState("")
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault()
    const form = /** @type {HTMLFormElement} */ (event.currentTarget)
    const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)]))
    setBusy(true)
    try {
      onDone(await act(values))
    } catch (failed) {
      setError(asError(failed))
      setBusy(false)
    }
  }
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${text}
      ${fields.map((field, at) => html`<${Input} key=${field.name} field=${field} first=${at === 0} />`)}
      ${confirm !== undefined &&
      html`<label>Type <b class="name">${confirm}</b> to confirm
        <input name="confirmation" autocomplete="off" value=${typed}
          onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} /></label>`}
      <${Failure} error=${error} />
      <footer>
        <button type="button" onClick=${onClose}>Cancel</button>
        <button class=${confirm === undefined ? "main" : "danger"}
          disabled=${isBusy || (confirm !== undefined && typed !== confirm)}>${button}</button>
      </footer>
    </form>
  <//>`
}

/** @param {{field: Field, first: boolean}} given */
function Input({ field, first }) {
  const { name, label, kind = "text", value = "", choices = [], hint, required } = field
  // What is typed stays when the form is drawn again: only the first values are given.
  const common = { name, required, autofocus: first, autocomplete: "off" }
  const input =
    kind === "area"
      ? html`<textarea ...${common} rows="5" defaultValue=${value}></textarea>`
      : kind === "choice"
        ? html`<select ...${common}>${choices.map((one) => html`<option key=${one} value=${one} defaultSelected=${one === value}>${one}</option>`)}</select>`
        : kind === "check"
          ? html`<input type="checkbox" name=${name} defaultChecked=${value === "on"} />`
          : html`<input ...${common} defaultValue=${value} inputmode=${kind === "number" ? "numeric" : null} />`
  const line = kind === "check" ? html`${input} ${label}` : html`${label} ${input}`
  return html`<label>${line}${hint && html`<small>${hint}</small>`}</label>`
}

/** A secret, which is shown this once. @param {{title: string, secret: string, onClose: () => void}} given */
export function Secret({ title, secret, onClose }) {
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p>Copy it now: it is shown this once, and the server keeps only its hash.</p>
    <${Copyable} label="The secret" text=${secret} />
    <footer><button class="main" onClick=${onClose}>Done</button></footer>
  <//>`
}
