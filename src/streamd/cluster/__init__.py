"""A node among its peers: how a cluster is founded, changed and recovered.

`cluster` handles a node's transport and sends for its group. A founding node connects to all
configured routes, asks every node there to remember the cluster's id durably, and only then writes
the first log entry with all voters. From then on a member that introduces itself without the
cluster's id has lost its disk, and is refused: with an empty log it could vote twice in a term.
`administration` carries out admin commands. An operator asks any node; the leader does the work,
one command at a time: `Add` makes a node with an empty log a learner, `Promote` makes a learner
that has caught up a voter, `Remove` takes a node out, `Transfer` transfers leadership. A change of
members is answered when its configuration is committed, not when it is proposed.

`shipping` sends Raft snapshots to followers whose entries the log no longer has, in pieces. Each
piece is a request, so one is under way at a time, and the answer names the next piece wanted. After
an interruption the transfer continues where it stopped, until the follower makes no progress for
`PATIENCE_S`.

`recovery` abandons a lost majority: `streamd recover` makes one node the only voter, with a new
cluster id, so that the other nodes cannot return to it.

Invariants:

- No peer's message reaches the core before `raft.checks` judged it and its commands decode.
- Only members of the configuration, and the leader, may make requests other than `JOIN`.
- A node's id is never used again after its data is lost or it was removed.
- No more than one configuration change is under way (thesis 4.3); the core refuses a second.
- A request's work is bounded by its timeout and by the transport's limits.

This package must never write to the log or the state itself, except at founding and in recovery,
when no group runs. Read on: docs/membership.md, docs/transport.md, docs/raft-snapshots.md.
"""
