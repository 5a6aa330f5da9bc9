// Binds a text of Yjs to a textarea.
import { simpleDiffString } from "lib0/diff"

export function bind(text, area) {
  area.addEventListener("input", () => {
    const { index, remove, insert } = simpleDiffString(text.toString(), area.value)
    text.doc.transact(() => {
      text.delete(index, remove)
      text.insert(index, insert)
    })
  })

  // The caret stays between the characters where it is.
  function replace({ index, remove, insert }) {
    area.setRangeText(insert, index, index + remove, "preserve")
  }

  text.observe(({ delta, transaction }) => {
    if (transaction.local) return
    let index = 0
    for (const { retain = 0, delete: remove = 0, insert = "" } of delta) {
      const characters = typeof insert === "string" ? insert : ""
      index += retain
      replace({ index, remove, insert: characters })
      index += characters.length
    }
    if (area.value !== text.toString() || area.value.length !== text.length) {
      removeWhatHasNoPlace(text)
      replace(simpleDiffString(area.value, text.toString()))
    }
  })
}

// Other programs may put images and carriage returns into the text. A textarea has neither, so
// positions in it would be others than in the text.
function removeWhatHasNoPlace(text) {
  let index = 0
  for (const { insert } of text.toDelta()) {
    for (const unit of typeof insert === "string" ? insert.split("") : ["\r"]) {
      if (unit === "\r") text.delete(index, 1)
      else index += 1
    }
  }
}
