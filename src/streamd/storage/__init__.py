"""What a node keeps on its disk: the Raft log, the machine's state, and the data directory.

`data_dir.DataDir` locks the directory and names the paths in it. The log (`log_storage.LogStorage`)
is the source of truth: it keeps every acknowledged entry through any crash. The state
(`state_store.StateStore`) is a copy. The log can rebuild it from the entry at which it ends, so it
is written rarely, and a damaged state is replaced.

The life of an entry: the group's writer calls `append` with the entries and the hard state of one
`Ready`. A changed vote goes to its own file first, then one synced record of the `journal` holds
everything; synced batches bring the oldest entries to LevelDB once the journal is half full, beside
the thread that writes.
Reads come from `entry_cache`, or from the engine, verified by the chain of checksums. Once the
state has an entry and no follower needs it, `begin_cut`, `cut` and `remove_cut` remove it.

Modules: `log_store` proves what a `log_engine` (`journaled_log`, over `leveldb_log`) returns, by
the chain and by `log_evidence`: the floor, the vote and the loss, in small files beside the
database. `salvage` keeps the proved part of a damaged log. Before LevelDB opens a database,
`torn_writes` repairs what a power failure tore, and tells a torn write from damage; it reads
LevelDB's own files by `leveldb_format`. `raft_snapshots` sends the state to another node,
`incoming` receives it, `install` replaces state and log with it; it leaves out what the object
store has. All of them use `fail_stop`, `leveldb`, `files` and `errors`.

Invariants:

- Nothing is acknowledged before it is synced, and each synced write ends before the next begins:
  only the end of the newest file, and the journal's last record, can be torn.
- A batch of LevelDB and the mark in the journal up to which it holds everything are one write; no
  record after the mark is overwritten.
- A log that ends before its floor, before its state, or with another entry at its floor has lost
  acknowledged writes. A node alone refuses to start; one with peers keeps the proved part, notes
  the loss *before* it touches the log, and does not vote until the leader has restored it.
- The vote file is never older than the log: a salvaged log cannot make a node vote twice in a term.
- The first error of a store is final (`FailStop`): LevelDB has confirmed synced writes after a
  failed one and lost them.
- Each multi-step change (install, salvage, set aside) can be repeated from any step after a crash.
- Bytes from disk are never trusted: checksums, the chain and a strict decoder verify them.

Storage must never: serve part of a log or state as if it were whole, delete what an investigation
may need (`log.damaged`, `state.damaged`, `.torn` files stay), or be called on the event loop where
a docstring says it blocks.

Read on: docs/durability.md, docs/decisions, tests/storage/test_order.py (which write comes first,
and a power cut that shows why), tests/crash.
"""
