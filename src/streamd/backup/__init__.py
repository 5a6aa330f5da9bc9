"""Backup: the archived log and checkpoints of the state, and the cluster restored from them.

The leader archives. `archive` puts committed entries as segments, about once a second, and
proposes `Archived` to agree on how far the archive goes; nodes keep their logs until then.
`checkpoints` puts the state itself from time to time, so that a restore need not replay the whole
log, and removes what is older than the retention. `merging` turns small segments into large ones.
`scrub` reads all objects over days and raises an alarm for missing or damaged ones. `history`
compares the end of the archive with the leader's log before anything is written or deleted: a node
that was set back to an old copy must not overwrite what it forgot.

A restore uses nothing but the store. `clusters` and `base` choose the cluster and the checkpoint to
begin with. `restore` makes a plan, brings the checkpoint's rows, lets `replay` apply the segments
up to the requested entry or time, verifies all packs, fences off the old cluster (`takeover`), and
begins a new log after the last entry. `inventory` tells what can be restored, and verifies all of
it. `archived_objects` reads the archive for all of these, and checks each object by its name.

Invariants:

- Only committed entries are archived, so overlapping segments hold the same entries.
- A segment continues the checksum chain of the one before it. A replay proves every entry against
  the chain, from the checkpoint to the last one.
- A manifest is put after its pieces and after the log is archived up to it. So the restorable range
  has no gap; where the log itself was lost, the gap shows in the catalog.
- A pointer to the end is put after the cluster has agreed on that end. A restore that reaches less
  than the newest pointer fails; it never silently returns a shorter history.
- Removal keeps everything that remains usable: manifests go first, then their pieces, then
  segments.
- No node serves a data directory with an unfinished plan.
- A restored cluster has an id, a folder and an incarnation of its own: no ETag of the old cluster
  matches anything there.

docs/backup-and-restore.md is for operators; docs/cold-store.md has the design.
"""
