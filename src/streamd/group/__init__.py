"""One Raft group at work: connects the pure core and machine to disk, clock and peers.

The life of a write:

1. `GroupWrites.propose` puts the command into a queue and parks the caller's task, `submit` several
   as one proposal with a callback. On a follower `forwarding` sends them to the leader, whose
   `admission` judges them again.
2. At a turn with the disk idle, `drafts` turns everything that waits into one log entry. The core
   sends it to the followers while the `writer` stores it on this node's disk; meanwhile the next
   entry gathers.
3. The core hands the entry out once a majority has it. `applying` gives it to the machine and
   settles the proposals: the parked tasks continue with their outcomes.
4. The change listener learns of the changes, after the writers were answered.
5. The `state_flusher` stores the changes of many entries at once, and lets the writer compact the
   log up to them. The log replays the part of the state that a crash loses.

A turn, without limits, pauses and other roles than the leader's:

    if not writer.is_storing and (draft := drafting.draft(...)):  # group commit
        core.propose([encode_batch(...)])  # peers' messages and ticks came by step() and tick()
    while (ready := core.ready()) is not None:
        peers.send(ready.messages)  # these promise nothing that must be on disk first
        if ready.must_store:
            writer.store(ready)  # after its sync, in another task:
            #   peers.send(ready.messages_after_store)
            #   core.stored(*ready.completion), and the next turn
        for entry in ready.committed:
            applier.apply(entry)  # the outcomes wake the writers' tasks
            core.applied(entry.index)
        read_index.answer(ready.reads)
        peers.snapshots_wanted(ready.snapshots)
    writer.start_next()

`Group` owns this loop and joins the faces for the layers above, each of which is a class to read by
itself: `writes` (propose, gather), `reads` (a read index, what is stored), `view` (role, members,
positions in the log, and changing them), and `storage` (flush, compact, Raft snapshots).

A turn never waits: it takes what is in the queues and everything that the core hands out, and gives
the writer its next job. Any number of wakes before a turn cause one turn (`turn_loop`). The writer
does one job at a time: a synced write, the installation of a Raft snapshot, or work on the log. The
slower the disk, the more writes share a sync.

`packages` numbers a node's commands in the session that `session_opener` gets from the log, so that
a package can be sent again after a change of leader and still takes effect once
(docs/forwarded-writes.md). `reads.ReadIndex` makes reads linearizable without a write
(docs/reads.md). `commit_announcer` says when followers are notified of commits that no entry
announces to them. `sweeping` proposes what follows from time alone, and the reads noted in
`touches`. `reclaim` removes rows that nothing refers to, except those that a reader pins.
`retention` knows which entries followers and the archive still need; `stores` opens a node's disk.

Invariants:

- An outcome leaves only after its entry is committed and applied here or at the leader.
- A message that confirms entries or a vote leaves only after they are synced.
- Only the turn task calls `Core.ready`; only the writer's thread writes to the log.
- Everything that waits has a limit in commands and bytes, and a deadline.
- A storage error or a `RaftViolation` ends the process; it is never retried.

No layer above uses the core (tests/test_layering.py). Read on: docs/raft.md, docs/durability.md.
"""
