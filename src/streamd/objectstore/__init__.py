"""The formats of the cold store, and the object stores that can hold it. Calls block.

An object store (`objects.ObjectStore`) is a directory (`fs`) or an S3 bucket (`s3`). It holds
immutable objects: each is written once, whole, under a name that is never used for anything else.
Most names carry the SHA-256 of the content, so that an object by itself shows whether it is what
was written. Below one store each cluster has a folder, named by its id.

The kinds of objects:
What is there:

- Packs (`packs`) hold slices: runs of records of many streams. The flusher writes packs, readers
  read slices from them.
- Segments (`segments`) hold the archived log: committed entries end to end, each proved by the
  checksum chain. Ends (`ends`) say how far the archive goes, so that the loss of its last segment
  shows.
- Checkpoints (`checkpoints`) hold the state as of a log entry: pieces with its rows, and a manifest
  that is written last. A restore begins with a checkpoint and replays the segments after it.
- Fences and checks: a name without a format of its own (`names`).

`framing` has the head that all formats share: magic, version, fields, checksum. `catalog` turns a
listing into what can be restored, from names alone. `check` tries out a store when a node starts.
`errors` differ by their remedy: wait, change the configuration, or repair.

Invariants:

- Every byte of an object is under a checksum. A reader verifies it before it returns anything, so
  wrong bytes are an `ObjectCorrupt`, never content.
- A format of a later version is refused (`ColdRefused`), never guessed at.
- A reader allocates no more than an object may hold, whatever its head claims.
- A name is never written twice with different content. So every call may be repeated, and an object
  may be cached for ever.
- Nothing here knows a node, a group or a clock; `tiering` and `backup` decide when to call.

docs/formats.md has each format to the byte; docs/cold-store.md what they are for.
"""
