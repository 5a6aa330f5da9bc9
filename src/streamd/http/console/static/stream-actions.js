// What can be done to a stream. What cannot be undone asks for the stream's name.
import { addressOf } from "./address.js"
import { ask, may } from "./api.js"
import { Form } from "./dialogs.js"
import { html, useState } from "./preact-htm.js"
import { isJson } from "./records.js"

/** @typedef {import("./stream.js").About} About */
/** @typedef {import("./dialogs.js").Field} Field */
/**
 * @typedef {object} Action
 * @property {string} verb of the scope that it needs
 * @property {boolean} [ends] it does not exist for a closed stream
 * @property {string} title
 * @property {string} text
 * @property {boolean} [isFinal] it cannot be undone
 * @property {(about: About) => Field[]} fields
 * @property {(about: About, given: Record<string, string>) => Promise<unknown>} act
 */

/** @type {Record<string, Action>} */
const ACTIONS = {
  append: {
    verb: "append",
    ends: true,
    title: "Append",
    text: "One record; of a JSON stream, an array appends each of its elements.",
    fields: ({ contentType }) => [{ name: "content", label: `Content (${contentType})`, kind: "area", required: true }],
    act: (about, { content = "" }) => {
      if (isJson(about.contentType)) JSON.parse(content) // Tells where the mistake is.
      return ask(about.path, { method: "POST", headers: { "Content-Type": about.contentType }, body: content })
    },
  },
  fork: {
    verb: "fork",
    title: "Fork",
    text: "A new stream that begins with this one's content, up to an offset. Nothing is copied.",
    fields: ({ next, target }) => [
      { name: "name", label: "The new stream (BUCKET/NAME)", value: `${target}-fork`, required: true },
      { name: "offset", label: "Up to this offset", value: next, required: true },
    ],
    act: async (about, { name = "", offset = "" }) => {
      const parts = name.split("/")
      const path = `v1/stream/${parts.map(encodeURIComponent).join("/")}`
      const headers = { "Stream-Forked-From": `/${about.path}`, "Stream-Fork-Offset": offset }
      await ask(path, { method: "PUT", headers })
      location.hash = addressOf("stream", parts)
    },
  },
  snapshot: {
    verb: "snapshot",
    title: "Publish a snapshot",
    text: "Takes the place of all records before the offset, which can no longer be read.",
    isFinal: true,
    fields: ({ next }) => [
      { name: "offset", label: "At this offset", value: next, required: true },
      { name: "type", label: "Content type", value: "application/json", required: true },
      { name: "content", label: "Content", kind: "area", required: true },
    ],
    act: ({ parts }, { offset = "", type = "", content = "" }) => {
      const path = `${parts.map(encodeURIComponent).join("/")}/snapshot/${encodeURIComponent(offset)}`
      return ask(path, { method: "PUT", headers: { "Content-Type": type }, body: content })
    },
  },
  close: {
    verb: "close",
    ends: true,
    title: "Close",
    text: "Nothing can be appended any more, and readers learn that the stream ends here.",
    isFinal: true,
    fields: () => [],
    act: (about) => ask(about.path, { method: "POST", headers: { "Stream-Closed": "true" } }),
  },
  delete: {
    verb: "delete",
    title: "Delete",
    text: "The stream and its records are gone; forks keep what they share with it.",
    isFinal: true,
    fields: () => [],
    act: async (about) => {
      await ask(about.path, { method: "DELETE" })
      location.hash = addressOf("bucket", [about.parts[0] ?? ""])
    },
  },
}

/** @param {{about: About, reload: () => void}} given */
export function Actions({ about, reload }) {
  const [asked, setAsked] = useState("")
  const action = ACTIONS[asked]
  const offered = Object.entries(ACTIONS).filter(([name, one]) => isOffered(name, one, about))
  return html`
    <div class="actions">
      ${offered.map(
        ([name, one]) => html`<button key=${name} class=${one.isFinal ? "danger" : ""}
          onClick=${() => setAsked(name)}>${one.title}</button>`,
      )}
    </div>
    ${action &&
    html`<${Form} title=${action.title} button=${action.title} text=${html`<p>${action.text}</p>`}
      fields=${action.fields(about)} confirm=${action.isFinal ? about.target : undefined}
      act=${(/** @type {Record<string, string>} */ given) => action.act(about, given)}
      onClose=${() => setAsked("")} onDone=${() => (setAsked(""), reload())} />`}
  `
}

/** @param {string} name @param {Action} action @param {About} about */
function isOffered(name, action, { target, closed, parts }) {
  // Snapshots have no address on the base protocol's surface.
  if (name === "snapshot" && !(parts.length === 2 && /^[a-z0-9_-]{4,64}$/.test(parts[0] ?? ""))) return false
  // Closing is an append, too.
  const needed = action.verb === "close" ? ["close", "append"] : [action.verb]
  return !(action.ends && closed) && needed.every((verb) => may(verb, target))
}
