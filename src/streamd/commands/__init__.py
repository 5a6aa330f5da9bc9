"""The operator's commands: ``streamd cluster | cold | backup | restore | recover | completion``.

There are two kinds. `cluster` and `cold` talk to a running cluster through any of its nodes. They
use the client's `Server`, its options and its exit statuses, so a list of nodes, ``--cacert`` and
``--retry-for`` mean the same everywhere. `backup`, `restore` and `recover` work without a server:
they open the object store or a stopped node's data directory, from the node's own configuration.

`cluster` shows the members and changes them. Any node answers; lag and last contact are known to
the leader alone, so ``status`` asks the leader too if it can be reached from here. A change of the
members is sent once (`Server.ask_once`): sent again after a lost answer, it would be refused, or
would transfer leadership twice. `cold` asks the leader to flush, to collect garbage or to scrub,
and polls until that is done; these orders are harmless to repeat, and are repeated when leadership
moves. `backup` reads and verifies an archive; `restore` makes a data directory from it. `recover`
turns one survivor's data directory into a new cluster of one node.

Invariants:

- A command that abandons data does so only with an explicit flag, and prints what is lost.
- Exit statuses are those of man/streamd.1 and man/streamd-client.1: 0 done, 1 refused, 2 usage,
  3 no server answered (`streamd.exits`). Scripts rely on them and on the JSON of ``--json``; text
  is for people.
- Only the user of the process can read what it creates (`streamd.privacy`).

The commands must never decide what only a node may decide (which node leads, what is garbage), nor
open a data directory that a node is using: the directory's lock prevents that.

Read on: docs/operations.md for the procedures, docs/backup-and-restore.md, man/streamd-backup.1.
"""
