"""The result of the log's commands, computed without the server's code.

A scope is a stream, or several streams that are joined by forks. `model` has the state of its
streams, and `scope` applies commands to them; `ids` finds their ids, and `results` names the
outcomes of commands. `sessions` decides which packages of nodes take effect, `components` which
streams belong together. `scan` reads the log once for all scopes, and `distribute` replays them in
Spark. All of it is written from the protocol and from docs/streams.md, docs/forwarded-writes.md,
docs/snapshots-design.md and docs/cold-store.md.
docs/snapshots-design.md and docs/cold-store.md.

A stream's id is the number of streams and blobs that were made before it in the whole group. One
scope cannot know that, so it is replayed as if every id that a command names were right. When all
scopes are done, ids are counted, and scopes that guessed wrong are replayed with the right ids.
"""
