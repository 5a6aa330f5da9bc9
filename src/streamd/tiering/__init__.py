"""Tiering: records move to the cold store, are read from there, and leave the node's disk.

The life of a record's bytes. An append makes them *hot*: they are in the state of every node.
`flush`: the leader gathers bytes that are old enough, or too many, into a pack, puts it, reads it
back and proposes `FlushCold`. When that entry is applied, the state has a row for each slice, and
the bytes are *cold*. `eviction`: each node compares its own copy with the slice's digest, and
removes the copy when they agree and its budget of hot bytes is used up. `cold_reader`: a read that
finds no chunk finds the slices and gets them from the store, with a cache and read-ahead.
`repacking`: the leader moves the live slices of sparse and of small packs into new ones. `gc`: the
leader forgets the slices of deleted and trimmed streams after a grace period, deletes packs without
live slices once no restore needs them, and deletes objects that nothing refers to (orphans).

`async_store` runs the blocking calls of `objectstore` in threads, retries them, and fails fast
while the store is unavailable. `tier` runs the tasks in rounds: `eviction` on every node, the
others on the leader, which numbers its packs within its term. `fence` stops a cluster from which
another one was restored.

Invariants:

- A slice is taken only where its owner's cold records end. So the cold records of a stream never
  have a gap, and a position before `cold_from` is in a slice or was trimmed.
- An object is read back and its digest compared before the log refers to it.
- The log refers to a pack only in an entry of the term in which the pack was written. A deposed
  leader's pack is never taken; it becomes an orphan.
- A node evicts only records whose digest equals that of the slice. Records that differ are kept and
  reported.
- A pack is deleted only when the state refers to no slice of it, no reader can still be reading
  it (pins and the grace period), and no restorable state needs it.
- Deletion checks the fence and the archive's history first, before each request.

Nothing here may block the log. An unavailable store stops flushing; when the hot limit is reached
appends are refused, but reads of hot records continue.

docs/cold-store.md has the design, docs/formats.md the bytes.
"""
