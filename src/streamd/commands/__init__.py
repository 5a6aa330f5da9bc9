"""The commands of ``streamd``: for users of streams, and for operators.

There are three kinds. `managing`, `reading`, `writing` and `snapshots` work with streams: they ask
a server with `streamd.client`, and read and write bytes at standard input and output (`lines`,
`messages`, `bootstrapping`). `cluster`, `cold`, `limits` and `token` talk to a running cluster
through any of its nodes: `operating` is the library's client for paths that answer in JSON. Both
kinds take their server from the same `options`, so a list of nodes, ``--cacert`` and
``--retry-for`` mean the same everywhere; `terminal` turns what went wrong into one sentence on
standard error and an exit status. `backup`, `restore` and `recover` work without a server: they
open the object store or a stopped node's data directory, from the node's own configuration.

`cluster` shows the members and changes them. Any node answers; lag and last contact are known to
the leader alone, so ``status`` asks the leader too if it can be reached from here. A change of the
members is not repeatable: sent again after a lost answer, it would be refused, or would transfer
leadership twice. `cold` asks the leader to flush, to collect garbage or to scrub, and polls until
that is done; these orders are harmless to repeat, and are repeated when leadership moves. `backup`
reads and verifies an archive; `restore` makes a data directory from it. `recover` turns one
survivor's data directory into a new cluster of one node.

Invariants:

- A command that abandons data does so only with an explicit flag, and prints what is lost.
- Nothing is shown twice or left out, and nothing is appended twice, whatever is killed.
- Input and output of any size pass through little memory; a line has a limit.
- Exit statuses are those of man/streamd.1 and man/streamd-client.1: 0 done, 1 refused, 2 usage,
  3 no server answered (`exits`). Scripts rely on them and on the JSON of ``--json``; text is for
  people.
- Only the user of the process can read what it creates (`streamd.process.privacy`).

The commands must never decide what only a node may decide (which node leads, what is garbage), nor
open a data directory that a node is using (the directory's lock prevents that), nor speak HTTP
themselves: the library does, in one way.

Read on: man/streamd-client.1, docs/operations.md for the procedures, docs/backup-and-restore.md,
man/streamd-backup.1.
"""
