// Edits Yjs documents through `YjsProvider` and `YjsServer`, both as published.
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import { Awareness } from "y-protocols/awareness"
import * as Y from "yjs"
import { patiently, serve, shown } from "./commands.mjs"

const [dsServerUrl] = process.argv.slice(2)
console.log = () => {} // The server tells of each snapshot there.
const server = new YjsServer({ dsServerUrl, compactionThreshold: 1000 })
const baseUrl = `${await server.start()}/v1/yjs/editing`

class Editor {
  constructor(docId, liveMode) {
    this.doc = new Y.Doc()
    this.text = this.doc.getText("page")
    this.awareness = new Awareness(this.doc)
    this.errors = []
    this.provider = new YjsProvider({ doc: this.doc, baseUrl, docId, liveMode, awareness: this.awareness })
    this.provider.on("error", (error) => this.errors.push(error.message))
  }

  view() {
    const present = [...this.awareness.getStates().values()].map(({ name }) => name).filter(Boolean)
    const { synced, connected } = this.provider
    return { text: this.text.toString(), present: present.sort().join(" "), synced, connected }
  }
}

const editors = new Map()
const last = async (docId) => {
  const answer = await fetch(`${baseUrl}/docs/${docId}?offset=snapshot`, { redirect: "manual" })
  return new URL(answer.headers.get("location"), baseUrl).searchParams.get("offset")
}

const commands = {
  join: (name, docId, liveMode) => void editors.set(name, new Editor(docId, liveMode)),
  insert: (name, at, text) => editors.get(name).text.insert(at, text),
  // Anywhere, within what the editor has at this time.
  insertAt: (name, share, text) => {
    const { text: page } = editors.get(name)
    page.insert(Math.floor(share * (page.length + 1)), text)
  },
  remove: (name, share) => {
    const { text: page } = editors.get(name)
    if (page.length) page.delete(Math.floor(share * page.length), 1)
  },
  show: (name, state) => editors.get(name).awareness.setLocalState(state),
  disconnect: (name) => editors.get(name).provider.disconnect(),
  connect: (name) => void editors.get(name).provider.connect(),
  destroy: (name) => editors.get(name).provider.destroy(),
  // As an application does with what it kept while it was offline.
  merge: (name, from) => Y.applyUpdate(editors.get(name).doc, Y.encodeStateAsUpdate(editors.get(from).doc)),
  // Answers with the offset of the snapshot once it is another than this.
  snapshot: async (docId, before) => {
    let offset = before
    while (offset === before) offset = await last(docId)
    return offset
  },
  // Answers with the editor once it shows this.
  until: (name, wanted) => shown(editors.get(name), wanted),
  // Answers with the text once all have the same document.
  agree: async (...names) => {
    const states = () => names.map((name) => Y.encodeStateVector(editors.get(name).doc).toString())
    const texts = () => names.map((name) => editors.get(name).text.toString())
    const agree = () => new Set(states()).size === 1 && new Set(texts()).size === 1
    await patiently(agree)
    return [...new Set(texts())]
  },
}

await serve(commands)
