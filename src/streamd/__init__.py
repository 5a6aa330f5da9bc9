"""streamd: a distributed server for Durable Streams.

Two pure packages decide everything: `raft` decides what the nodes of a group agree on, `streams`
what a command does to a stream. They await nothing, read no clock and do no I/O. Around them:

- `storage`, `objectstore` and `transport` are the disk, the object store and the network;
- `group` runs one Raft group on top of these: it stores, sends, applies and answers;
- `cluster` handles members, `tiering` moves bytes between the disk and the object store, `backup`
  archives the log and restores clusters from the archive;
- `node` brings all of these up and down in order, and `http` serves requests with a node;
- `commands` and `client` are the command line, `spark` the data sources for Spark.

A package imports only what is further in; tests/test_layering.py enforces it. docs/architecture.md
follows a write from the socket to the disk and back, and docs/glossary.md defines the terms.
"""

from os.path import dirname as _dirname
from os.path import exists as _exists

if all(_exists(f"{_dirname(__file__)}/{name}") for name in ("client-only", "app.py")):
    raise ImportError(
        "durable-streamd and durable-streamd-client are both installed, and share files; the first "
        "contains the second. Uninstall both, then install one: "
        "pip uninstall durable-streamd durable-streamd-client"
    )

__version__ = "0.2.0"
