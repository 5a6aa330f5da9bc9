// Loads what a page shows, and again while somebody looks at it.
import { ApiError, isReached, news } from "./api.js"
import { useEffect, useRef, useState } from "./preact-htm.js"

/**
 * What `load` returned last, and the error of its last call if that failed. It is called at once, and
 * every `everyMs` (never if 0) while the page is visible; also when the page becomes visible, when the
 * node answers again, and by `reload`. It starts from nothing when one of `inputs` changes.
 *
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {number} everyMs
 * @param {unknown[]} [inputs]
 * @returns {{data: T | null, error: ApiError | null, reload: () => void}}
 */
export function usePoll(load, everyMs, inputs = []) {
  const [state, setState] = useState(() => nothing())
  const turn = useRef(() => {})
  const newest = useRef(load)
  newest.current = load
  useEffect(() => {
    const ending = new AbortController()
    let timer = 0
    let isBusy = false
    turn.current = async () => {
      clearTimeout(timer)
      if (isBusy || document.hidden || ending.signal.aborted) return
      isBusy = true
      let next
      try {
        const data = await newest.current(ending.signal)
        next = () => ({ data, error: null })
      } catch (error) {
        next = (/** @type {any} */ before) => ({ data: before.data, error: asError(error) })
      }
      isBusy = false
      if (ending.signal.aborted) return
      setState(next)
      if (everyMs) timer = window.setTimeout(turn.current, everyMs)
    }
    const onReach = () => isReached() && turn.current()
    document.addEventListener("visibilitychange", turn.current)
    news.addEventListener("reach", onReach)
    setState(nothing())
    turn.current()
    const again = turn.current
    return () => {
      ending.abort()
      clearTimeout(timer)
      document.removeEventListener("visibilitychange", again)
      news.removeEventListener("reach", onReach)
    }
  }, inputs)
  return { ...state, reload: () => turn.current() }
}

/** @returns {{data: any, error: ApiError | null}} */
function nothing() {
  return { data: null, error: null }
}

/** @param {unknown} error */
export function asError(error) {
  return error instanceof ApiError ? error : new ApiError(-1, "FAILED", String(error))
}
