"""A node: its group, its cold store and its reads, started and stopped in order.

`node` puts together one member of a group over its open stores, and starts its tasks. First comes
the group; then a single node waits until its log is replayed, and a node of a cluster lets peers
in. To stop, the node refuses peers, stores the state, so that the next start has little to replay,
and ends its tasks.

A read takes what it needs from three places, in this order: memory (recently appended chunks), the
state store in a thread, the cold store. `reads` does so for records, `blobs` for the bytes of
snapshots. Between two lookups a flush may move records from memory to the store, and a Raft
snapshot may replace both: each read checks `State.flushes` and looks again if it must.

The machine cannot wait for the cold store. So a command that depends on old records, such as a fork
or a snapshot at an old offset, carries a `VerifiedPosition` that `position_lookup` found before.
Records never change. If the stream was replaced meanwhile, the outcome is `STALE`, and the lookup
is repeated.

`status` and `cold_status` report to operators, as JSON and as metrics, and `leader_operations` gets
them from the leader: they take a `Node`, which knows nothing of them. What only the leader knows
is absent, or not a number, on the other nodes.

Invariants:

- A value of the state belongs to the machine: never write to it, nor keep it across an await.
- A read is linearizable only after `GroupReads.catch_up`.
- Without a cold store every read of cold records raises a `ColdError`; nothing else changes.

This package must never change the state except through the log. Read on: docs/reads.md,
docs/cold-store.md, docs/operations.md.
"""
