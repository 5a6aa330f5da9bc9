// Numbers and times as text.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–"
  let value = bytes
  let unit = 0
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024
    unit += 1
  }
  return `${unit ? value.toFixed(value < 10 ? 1 : 0) : value} ${UNITS[unit]}`
}

/** @param {number | null | undefined} number */
export function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en")
}

/** So many things. @param {number} number @param {string} one @param {string} [several] */
export function counted(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`
}

/** @param {number | null | undefined} number of any size, with three digits or so */
export function rough(number) {
  if (number === null || number === undefined) return "–"
  return number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 2 : number < 100 ? 1 : 0 })
}

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–"
  if (ms < 1000) return `${Math.round(ms)} ms`
  const seconds = Math.round(ms / 1000)
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`
}

/** A time as people here write it. @param {number | null | undefined} ms since the epoch */
export function time(ms) {
  return ms === null || ms === undefined
    ? "–"
    : new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, "Z")
}
