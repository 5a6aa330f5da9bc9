"""The meaning of the protocol, without I/O: commands become outcomes and changes of state.

The Raft log replicates commands (`commands`); every node's `machine.Machine` applies them in the
same order to the same `state.State` and gets the same outcomes. Nothing here reads a clock, the
disk or a random source: time is the leader's time stamped into the entry, and what a replica might
lack, such as records that only the object store has, comes along in the command as a
`VerifiedPosition`.

The life of a record: the API cuts a body into records (`content`). `machine` judges the append
against its stream's conditions, `ETag`, producer and sequence, then adds it to the stream's tail
(`tails`), where an open `chunks.OpenChunk` collects it and live readers get it. A flush of the
state (`State.begin_flush`) turns changes into rows of the key space in `keys` and closes chunks at
a size. Later a `FlushCold` command says that a pack of the object store holds a slice of the stream
(`cold.packing`), and the node may evict its chunks. A snapshot (`snapshots`) or a deletion makes
the records garbage, which notes of their own list for removal, a bounded amount at a time.

Modules: `model` and `offsets` are the values that the state holds; `tables` and `tails` keep them
in memory over the key-value store; `state` joins them. `checks` judges a command before it is
proposed (`fault`) and in the log (`is_applicable`). `machine` applies commands, with `forks`,
`producers`, `snapshots`, `blobs` and `sessions` for the larger ones, and with what has a folder:

- `subscriptions/`: workers that are woken when streams have something for them.
- `fencing/`: streams on which these workers write under a claim, or not at all.
- `operations/`: changes of the cluster in steps.
- `cold/`: which records are in which pack of the cold store.
- `queries/`: what changes nothing: reads, lists, outcomes known before.

Invariants:

- Determinism: the same log has the same outcomes and contents on every replica and every replay.
  Only how records are cut into chunks, and which of them a node has evicted, may differ.
- `apply` never raises: a command that cannot be applied has the outcome `INVALID`, for ever, since
  all replicas and all later releases must agree on it.
- One flush stores the state as of one entry: the header with `applied_index` is in the same batch
  as every row, so a replay starts exactly after it.
- A record's position and bytes never change, and a stream id is never used twice. So a tag, a pin,
  a slice or a finding that was true stays true or refers to nothing.
- The slices of a stream have no gaps: everything before the end of the last one is in packs.
- Outcomes, commands and rows only gain fields at the end, with a default: logs and states of every
  release are read for ever.

Read on: docs/streams.md, docs/formats.md (rows), docs/forwarded-writes.md, docs/raft-snapshots.md.
"""
