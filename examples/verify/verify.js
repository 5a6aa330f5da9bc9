// Verifies that a record is in the log of a cluster, and that a log has only grown.
//
// docs/proofs.md has the format. This is a second implementation of spark/streamd_audit/proof.py, and
// knows nothing but the page: both are tested with the same good and forged proofs.

export class NotProved extends Error {}

const MAX_KEYS = 256
const MAX_DEPTH = 100
const COMMANDS = 1 // the kind of an entry that holds commands
const CLUSTER = "(streamd/[0-9A-Za-z-]{1,64})"
const BASE64 = "([0-9A-Za-z+/]+=*)"
const NUMBER = "(0|[1-9][0-9]{0,13})"
const KEY = new RegExp(`^${CLUSTER}\\+([0-9a-f]{8})\\+${BASE64}$`)
const HEAD = new RegExp(
  `^${CLUSTER}/${NUMBER}/${NUMBER}\\n${NUMBER}\\n${BASE64}\\ntime ${NUMBER}\\n$`,
)

// What the bytes of a proof show to one who trusts a key. Throws `NotProved`.
export async function verifyRecord(content, trusted) {
  const { format, claim, entry, command, path, head: signed } = json(content)
  if (format !== "streamd-proof-1") fail("this is not a proof of streamd")
  const head = await verifiedHead(signed, trusted)
  const leaf = binary(object(command).bytes)
  const count = integer(object(entry).count, 2 ** 32 - 1)
  const root = await rootAbove(
    await hashed([0], leaf), integer(command.number), count, hashes(command.path),
  )
  const prefix = binary(entry.prefix)
  const start = [...big(integer(entry.index)), ...big(integer(entry.term)), COMMANDS]
  const hash = await hashed(
    [0, ...start, ...small(prefix.length)], prefix, small(count), root, binary(entry.suffix),
  )
  const number = entry.index - head.firstIndex
  if (!same(await rootAbove(hash, number, head.size, hashes(path)), head.root)) {
    fail("the entry is not in the log that the head is of")
  }
  const { stream, offset: claimedOffset, record } = object(claim)
  const shown = recordOf(leaf, text(stream), integer(record))
  return { stream, ...shown, entry: entry.index, head, claimedOffset: text(claimedOffset) }
}

// One of the records that a command appends to the stream, and their content type.
function recordOf(command, stream, number) {
  const fields = new MessagePack(command).whole()
  if (!Array.isArray(fields)) fail("the command appends no records")
  const [what, key] = fields
  const isCreate = what === "create" && Array.isArray(fields[2]) && fields[2].length > 0
  if (what !== "append" && !isCreate) fail("the command appends no records")
  // A fork may name no content type; its records have one.
  const named = isCreate ? fields[2][0] ?? fields[9] : fields[2]
  const [data, lengths] = isCreate ? fields.slice(4) : fields.slice(3)
  if (![key, data].every((one) => one instanceof Uint8Array) || !Array.isArray(lengths)) {
    fail("the command appends no records")
  }
  if (stream.includes("\0") || !same(key, utf8(stream.replace("/", "\0")))) {
    fail("the command is for another stream")
  }
  let begin = 0
  let size = 0
  lengths.forEach((length, at) => {
    size += integer(length)
    if (at < number) begin += length
  })
  if (size !== data.length || number >= lengths.length) {
    fail("the command has no record of that number")
  }
  const contentType = typeof named === "string" ? named : null
  let record = data.slice(begin, begin + lengths[number])
  const mediaType = (contentType ?? "").split(";")[0].replace(/^[ \t]+|[ \t]+$/g, "")
  if (mediaType.toLowerCase() === "application/json" && record.at(-1) === 0x2c) {
    record = record.slice(0, -1) // A message is stored with a comma after it.
  }
  return { record, contentType }
}

// Two heads, if the second's `consistency` proves that its log begins with all that is in the
// first's. Throws `NotProved`.
export async function verifyHeads(earlier, later, trusted) {
  const signed = json(later)
  const was = await verifiedHead(json(earlier), trusted)
  const now = await verifiedHead(signed, trusted)
  if (["cluster", "group", "firstIndex"].some((name) => was[name] !== now[name])) {
    fail("the heads are of two logs, or the log began again between them")
  }
  if (was.size < 1 || was.size > now.size) {
    fail("the second head's log is shorter than the first head's")
  }
  const path = hashes("consistency" in signed ? signed.consistency : [])
  const [first, second] = await rootsAbove(was.root, was.size, now.size, path)
  if (!same(first, was.root) || !same(second, now.root)) {
    fail("the second head's log does not begin with the first head's")
  }
  return [was, now]
}

// The head in a note that the last of its keys has signed. The first key vouches for itself, each
// for the next, and the trusted key is one of them.
async function verifiedHead(signed, trusted) {
  const { note, keys } = object(signed)
  if (!Array.isArray(keys) || keys.length < 1 || keys.length > MAX_KEYS) {
    fail("this is not a signed head of streamd")
  }
  const chain = []
  for (const one of keys) {
    const { key, signed_by: by, signature } = object(one)
    const told = `${text(key).split("+")[0]}/key\n${key}\n`
    await checkSignature(chain.at(-1) ?? key, told, binary(signature))
    if (by !== (chain.at(-1) ?? null)) fail("the keys do not vouch for each other")
    chain.push(key)
  }
  if (!chain.includes(trusted.trim())) {
    fail("the keys do not lead from the trusted one to the one that signed")
  }
  const key = chain.at(-1)
  const [cluster, keyId] = key.split("+")
  const cut = text(note).lastIndexOf("\n\n")
  const body = note.slice(0, Math.max(cut, 0)) + "\n"
  const line = new RegExp(`^\u2014 ${cluster} ${BASE64}$`)
  const signatures = note
    .slice(cut < 0 ? 0 : cut + 2)
    .split("\n")
    .flatMap((one) => line.exec(one)?.slice(1) ?? [])
    .map(binary)
  const ours = signatures.find((one) => hex(one.slice(0, 4)) === keyId)
  await checkSignature(key, body, ours?.slice(4) ?? new Uint8Array())
  const told = HEAD.exec(body)
  if (told?.[1] !== cluster) fail("the key has not signed a head of its cluster's log")
  const [group, firstIndex, size, timeMs] = [2, 3, 4, 6].map((at) => Number(told[at]))
  return { cluster, group, firstIndex, size, root: binary(told[5]), timeMs }
}

// A key is NAME+ID+KEY: ID is from a hash of the other two, KEY the number of Ed25519 and 32 bytes.
async function checkSignature(key, told, signature) {
  const [, name, id, encoded] = KEY.exec(key) ?? fail("a key has the form NAME+ID+KEY")
  const bytes = binary(encoded)
  const hash = await hashed(utf8(`${name}\n`), bytes)
  if (bytes[0] !== 1 || hex(hash.slice(0, 4)) !== id) {
    fail(`key ${id} does not have the id that it names`)
  }
  let isValid = false
  try {
    const imported = await crypto.subtle.importKey("raw", bytes.slice(1), "Ed25519", false, ["verify"])
    isValid = await crypto.subtle.verify("Ed25519", imported, signature, utf8(told))
  } catch (error) {
    if (error.name === "NotSupportedError") throw error
  }
  if (!isValid) fail(`key ${id} has not signed this`)
}

// The root of a tree of `size` leaves, from leaf `number` and its path (RFC 9162 section 2.1.3.1).
async function rootAbove(leaf, number, size, path) {
  if (number < 0 || number >= size || path.length > 0 !== size > 1) {
    fail("a path does not lead from its leaf to the root")
  }
  if (size === 1) return leaf
  const [left, rest, other] = [leftOf(size), path.slice(0, -1), path.at(-1)]
  return number < left
    ? hashed([1], await rootAbove(leaf, number, left, rest), other)
    : hashed([1], other, await rootAbove(leaf, number - left, size - left, rest))
}

// The roots of the first `old` leaves, and of all (section 2.1.4.1). `whole` is the first while it
// may be a subtree of the second; else it is null, and the path has the subtree.
async function rootsAbove(whole, old, size, path) {
  if (old === size && path.length === (whole ? 0 : 1)) return Array(2).fill(whole ?? path[0])
  if (old === size || path.length === 0) fail("a path does not lead from the one root to the other")
  const [left, rest, other] = [leftOf(size), path.slice(0, -1), path.at(-1)]
  if (old <= left) {
    const [first, second] = await rootsAbove(whole, old, left, rest)
    return [first, await hashed([1], second, other)]
  }
  const [first, second] = await rootsAbove(null, old - left, size - left, rest)
  return [await hashed([1], other, first), await hashed([1], other, second)]
}

// How many of a tree's leaves are left of its root: a power of two. Shifts have 32 bits only.
function leftOf(size) {
  let left = 1
  while (left * 2 < size) left *= 2
  return left
}

// The values that commands are made of; nothing else is read.
class MessagePack {
  constructor(bytes) {
    this.bytes = bytes
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
    this.at = 0
  }

  whole() {
    const value = this.value(0)
    return this.at === this.bytes.length ? value : fail("the command cannot be read")
  }

  value(depth) {
    const kind = this.number("getUint8", 1)
    if (kind < 0x80) return kind
    if (kind < 0x90) return this.pairs(kind - 0x80, depth)
    if (kind < 0xa0) return this.list(kind - 0x90, depth)
    if (kind < 0xc0) return decoded(this.take(kind - 0xa0))
    if (kind >= 0xe0) return kind - 0x100
    if (kind === 0xc0) return null
    if (kind === 0xc2 || kind === 0xc3) return kind === 0xc3
    const size = () => this.size(kind)
    if (kind >= 0xc4 && kind <= 0xc6) return this.take(size())
    if (kind === 0xca) return this.number("getFloat32", 4)
    if (kind === 0xcb) return this.number("getFloat64", 8)
    if (kind >= 0xcc && kind <= 0xce) return size()
    if (kind === 0xcf) return Number(this.number("getBigUint64", 8))
    if (kind === 0xd0) return this.number("getInt8", 1)
    if (kind === 0xd1) return this.number("getInt16", 2)
    if (kind === 0xd2) return this.number("getInt32", 4)
    if (kind === 0xd3) return Number(this.number("getBigInt64", 8))
    if (kind >= 0xd9 && kind <= 0xdb) return decoded(this.take(size()))
    if (kind === 0xdc || kind === 0xdd) return this.list(size(), depth)
    if (kind === 0xde || kind === 0xdf) return this.pairs(size(), depth)
    return fail("the command cannot be read")
  }

  // The unsigned number after a byte that says how long it is.
  size(kind) {
    const bytes = { 0xc4: 1, 0xc5: 2, 0xc6: 4, 0xcc: 1, 0xcd: 2, 0xce: 4, 0xd9: 1, 0xda: 2, 0xdb: 4 }
    const width = bytes[kind] ?? (kind & 1 ? 4 : 2)
    return this.number(`getUint${width * 8}`, width)
  }

  number(get, width) {
    if (this.at + width > this.bytes.length) fail("the command cannot be read")
    this.at += width
    return this.view[get](this.at - width)
  }

  take(size) {
    if (this.at + size > this.bytes.length) fail("the command cannot be read")
    this.at += size
    return this.bytes.subarray(this.at - size, this.at)
  }

  list(length, depth) {
    if (depth === MAX_DEPTH) fail("the command cannot be read")
    const values = []
    while (values.length < length) values.push(this.value(depth + 1))
    return values
  }

  pairs(length, depth) {
    return new Map(this.list(length * 2, depth).map((one, at, all) => [one, all[at + 1]]))
  }
}

function fail(why) {
  throw new NotProved(why)
}

async function hashed(...parts) {
  const bytes = new Uint8Array(parts.reduce((size, part) => size + part.length, 0))
  let at = 0
  for (const part of parts) {
    bytes.set(part, at)
    at += part.length
  }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))
}

function json(content) {
  try {
    return object(JSON.parse(decoded(content)))
  } catch (error) {
    return fail(`this cannot be read: ${error.message}`)
  }
}

function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch {
    return fail("a text is not in UTF-8")
  }
}

function object(value) {
  return typeof value === "object" && value !== null ? value : fail("this is no proof or head")
}

function text(value) {
  return typeof value === "string" ? value : fail("this is no proof or head")
}

function integer(value, most = Number.MAX_SAFE_INTEGER) {
  return Number.isSafeInteger(value) && value >= 0 && value <= most
    ? value
    : fail("a number is out of its range")
}

// The bytes that a text in base64 stands for.
function binary(value) {
  let found
  try {
    found = atob(text(value))
  } catch {
    // It is not in base64.
  }
  if (found === undefined || btoa(found) !== value) fail("a text is not in base64")
  return Uint8Array.from(found, (one) => one.charCodeAt(0))
}

function hashes(path) {
  if (!Array.isArray(path)) fail("a path is a list of hashes")
  const found = path.map(binary)
  return found.every((one) => one.length === 32) ? found : fail("a hash has 32 bytes")
}

const utf8 = (value) => new TextEncoder().encode(value)
const hex = (bytes) => Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("")
const same = (one, other) => one.length === other.length && one.every((byte, at) => byte === other[at])

// Numbers of eight and of four bytes, the most significant first.
function big(value) {
  return [...small(Math.floor(value / 2 ** 32)), ...small(value % 2 ** 32)]
}

function small(value) {
  return [24, 16, 8, 0].map((bits) => (value >>> bits) & 255)
}
