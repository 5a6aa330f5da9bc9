"""What the commands of the log come to, found without the server's code.

`model` knows what one command does to one scope: a stream, or streams that are joined by forks.
`sessions` tells which packages of nodes take effect, `scopes` which streams belong together. `scan`
reads the log once for all of them, and `distribute` runs the model over all scopes in Spark. All of
it is written from the protocol and from docs/streams.md, docs/sessions.md,
docs/snapshots-and-bootstrap.md and docs/cold-store.md.

A stream's id is the number of streams and blobs that were made before it in the whole group. One
scope cannot know that, so it is replayed as if every id that a command names were right; when all
scopes are done, ids are counted, and scopes that had guessed wrong are replayed with them known.
"""
