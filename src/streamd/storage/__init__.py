"""What a node keeps on its disk: the Raft log, the machine's state, and the data directory.

`data_dir.DataDir` locks the directory and knows its places. The log (`log_storage.LogStorage`) is
the truth: an entry that it has acknowledged is there after any crash. The state
(`state_store.StateStore`) is a copy that the log can make again from the entry it ends at, so it is
written rarely, and a damaged one is replaced.

The life of an entry: the group's writer calls `append` with the entries and the hard state of one
`Ready`; a changed vote is written to its own file first, then one synced batch holds everything;
reads come from `entry_cache` or, verified by the chain of checksums, from the engine. Once the
state has an entry and no follower needs it, `begin_cut`, `cut` and `remove_cut` remove it.

Modules: `log_store` proves what a `log_engine` (`leveldb_log`) returns, by the chain and by
`log_evidence`, the floor, vote and loss in small files beside the database. `salvage` keeps the
proved part of a damaged log. `wal` and `tears` repair, before LevelDB opens a database, what a
power failure tore, and tell it from damage. `raft_snapshots` sends the state to another node,
`incoming` receives it, `install` puts it in the place of state and log; `hot_rows` leaves out what
the object store has. `fail_stop`, `leveldb`, `files` and `errors` are what all of them use.

Invariants:

- Nothing is acknowledged before it is synced, and each synced write ends before the next begins:
  only the end of the newest file can be torn.
- A log that ends before its floor, before its state, or with another entry at its floor has lost
  acknowledged writes. A node alone refuses to start; one with peers keeps the proved part, notes
  the loss *before* it touches the log, and does not vote until the leader has restored it.
- The vote file is never older than the log: a salvaged log cannot make a node vote twice in a term.
- The first error of a store is final (`FailStop`): LevelDB has confirmed synced writes after a
  failed one and lost them.
- Each multi-step change (install, salvage, set aside) can be repeated from any step after a crash.
- Bytes from disk are never trusted: checksums, the chain, and a decoder that refuses.

Storage must never: serve part of a log or state as if it were whole, delete what an investigation
may need (`log.damaged`, `state.damaged`, `.torn` files stay), or be called on the event loop where
a docstring says it blocks.

Read on: docs/durability.md, docs/decisions, tests/storage/test_order.py (what goes first, and the
power cut that shows why), tests/crash.
"""
