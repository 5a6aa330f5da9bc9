"""Consensus, without I/O: given what happened, the core returns what to store, send and apply.

`core.Core` is one node of one group (Diego Ongaro's thesis; "thesis" in docstrings names its
sections). Its surroundings, the *shell*, call an input (`step` for a message, `propose`, `read`,
`tick`, `stored`, `applied`) and then take `ready()` until it returns None. A `Ready` is a list of
duties, each handed out once: store this hard state and these entries, send these messages now and
those once that is stored, apply these entries, answer these reads. The core never reads a clock,
the disk or a random source of its own, so a simulation drives it exactly as a server does. A
snapshot in this package is always a Raft snapshot.

The life of an entry on the leader: `leadership.Leadership.propose` appends it to `log.Log`, in
memory. The next `Ready` hands it out to store, and `replication` sends it to the followers at the
same time (thesis 10.2.1). `stored` and the followers' answers move the commit index, by majorities
that `membership` counts, and only of entries of the leader's own term (3.6.2, figure 3.7). A later
`Ready` hands the entry out to apply, once it is on this node's disk as well.

Modules, from the inside: `messages` and `interface` are values; `chain` proves a log; `log` is the
log in memory and on disk; `state` is what every role shares. `roles` holds the role and gives each
message to `elections` (campaigns, pre-vote 9.6), `following` (3.5) or `leadership`, which uses
`replication` with a `progress` for each follower, `reads` (ReadIndex, 6.4; also those at a
follower) and `membership` (joint consensus, 4.3). `checks` refuses messages no correct peer sends.
`vote_eligibility` keeps a node whose disk lost entries from voting. The safety properties are
checks that every simulation runs after each event: tests/raft/invariants.py.

Invariants:

- A message that promises something (a vote, an accepted append) is in `messages_after_store`: it
  leaves only after the promise is on disk.
- While a process runs, its term and commit index never decrease; a vote, once given in a term,
  never changes (3.4).
- Nothing committed is ever removed or replaced in a log: `Log.truncate` raises `RaftViolation`.
- A leader commits only entries of its own term by counting (3.6.2).
- A follower acknowledges only entries that are on its disk and match the leader's log (3.5).
- A configuration is in force from the moment it is appended, committed or not (4.1).
- A read is answered from a commit index that a majority confirmed after the read arrived (6.4).

The core must never: await, read a clock, guess. When it sees what Raft rules out it raises
`RaftViolation`, and the process ends: continuing could lose data.

Read on: docs/raft.md, tests/raft/scripts (small clusters, step by step), and the simulation in
tests/raft/test_simulation.py.
"""
