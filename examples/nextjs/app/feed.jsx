"use client"

import { useEffect, useState } from "react"
import { stream } from "@durable-streams/client"

export function Feed() {
  const [items, setItems] = useState([])

  useEffect(() => {
    const gone = new AbortController()
    setItems([])
    follow((more) => setItems((items) => [...items, ...more]), gone.signal)
    return () => gone.abort()
  }, [])

  return <ul>{items.map((item, number) => <li key={number}>{item.text}</li>)}</ul>
}

// Reads the feed from its start, and then live, until the page is gone.
async function follow(show, signal) {
  for (let offset = "-1"; !signal.aborted; ) {
    try {
      const { url } = await signed(signal)
      // The client asks for each of its requests, so a page that stays open has a URL that is valid.
      const params = { signed: async () => (await signed(signal)).signed }
      const response = await stream({ url, params, offset, live: "sse", json: true, signal })
      response.subscribeJson((batch) => {
        if (signal.aborted) return
        offset = batch.offset
        show(batch.items)
      })
      await response.closed
      if (response.streamClosed) return
    } catch (error) {
      if (signal.aborted) return
      console.warn("once more in a second:", error)
      await new Promise((resolve) => setTimeout(resolve, 1000))
    }
  }
}

async function signed(signal) {
  const answer = await fetch("/feed", { signal })
  if (!answer.ok) throw new Error(await answer.text())
  return answer.json()
}
