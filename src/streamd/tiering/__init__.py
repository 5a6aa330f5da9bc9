"""Tiering: records move to the cold store, are read from there, and leave the node's disk.

The bytes of a record:

    append                flush, FlushCold            compared, evicted
    ───────► HOT ───────────────────────► FLUSHED ─────────────────────► EVICTED
             in the state of              in a slice of a pack,          only in the pack:
             every node                   and on this node's disk        read by `cold_reader`
      │                                     │                              │
      └──────────────┬──────────────────────┴──────────────────────────────┘
                     │ the stream is deleted, or trimmed past them
                     ▼
                   GONE: rows by `group.reclaim`; the slice by DropSlices, after a grace period

HOT becomes FLUSHED by an entry of the log, so at the same index on every node; *cold* records are
all that are not hot. FLUSHED becomes EVICTED on each node by itself (`eviction` and `local_rows`),
when its own copy has the slice's digest and its budget of flushed bytes is used up. A chunk that
was evicted may come back, joined to the records after it, and is evicted again.

The pack that holds their slices:

    put and read back     FlushCold, MoveSlices            no live slice is left
    ───────► UNDER WAY ────────────────────────► LIVE ───────────────────────► DEAD
                │                                │  ▲                           │ object, then row
                │ its entry can                  └──┘ slices are dropped,       ▼ (ForgetPacks)
                ▼ no longer come                      or moved elsewhere     DELETED
             ORPHAN ──────► DELETED by `gc`, which finds its name and no row

A dead pack waits for three things before it is deleted: a grace period for readers, the archive,
which must no longer restore a state from before its death, and followers, which must have applied
it.

`flush`: the leader gathers bytes that are old enough, or too many, into a pack. `repacking` moves
the live slices of sparse and of small packs into new ones, which leaves the old ones dead. `gc`
drops slices and deletes packs and orphans. Nothing that is dead comes alive again.

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
