"""The meaning of the protocol, without I/O: commands become outcomes and changes of state.

The Raft log replicates commands (`commands`); every node's `machine.Machine` applies them in the
same order to the same `state.State` and gets the same outcomes. Nothing here reads a clock, the
disk or a random source: time is the leader's time stamped into the entry, and whatever a replica
might not have at hand, such as records that only the object store has, comes along in the command
as a `VerifiedPosition`.

The life of a record: the API cuts a body into records (`content`); `machine` judges the append
against its stream's conditions, `ETag`, producer and sequence, then appends it to the stream's tail
(`tails`), where it is collected in an open `chunks.OpenChunk` and read live. A flush of the state
(`State.begin_flush`) turns changes into rows of the key space in `keys` and closes chunks at a
size. Later a `FlushCold` command says that a slice of the stream is in a pack of the object store
(`packing`), and the node may evict its chunks. A snapshot (`snapshots`) or a deletion makes the
records garbage, which is removed by keys of their own, a bounded amount at a time.

Modules: `model` and `offsets` are the values that the state holds; `tables` and `tails` keep them
in memory over the key-value store; `state` joins them; `checks` says what a command must be like,
before it is proposed (`fault`) and in the log (`is_applicable`); `machine` applies commands, with
`forks`, `producers`, `snapshots`, `blobs`, `packing` and `sessions` for the larger ones;
`reading`, `listing`, `etags` and `packs` answer questions and change nothing.

Invariants:

- Determinism: the same log has the same outcomes and contents on every replica and every replay.
  Only how records are cut into chunks, and which of them a node has evicted, may differ.
- `apply` never raises: a command that cannot be applied has the outcome `INVALID`, for ever, since
  each replica and each later release must agree on it.
- What one flush stores is the state as of one entry: the header with `applied_index` is in the same
  batch as every row, so a replay starts exactly after it.
- A record's place and bytes never change; a stream id is never used twice. So a tag, a pin, a slice
  or a finding that was true stays true or refers to nothing.
- The slices of a stream have no gap: what lies before the end of the last one is in packs.
- Outcomes, commands and rows only gain fields at the end, with a default: logs and states of every
  release are read for ever.

Read on: docs/streams.md, docs/formats.md (rows), docs/sessions.md, docs/snapshots.md.
"""
