"""`StreamDB`: the state of a stream, kept up to date in the background.

The parts:

- `database`: follows the stream with `streamd.client.AsyncClient`, on asyncio or Trio;
- `collections`: rows by key and by index, change feeds, and writes;
- `feeds`: a bounded queue for each reader of changes;
- `writes`: optimistic values until their transaction comes back on the stream;
- `lanes`: appends that are stored once;
- `snapshots`: begin with one where messages were trimmed; publish one, for a program or in the
  background;
- `sqlite`: a durable copy of the rows and of the offset, in one transaction per batch.

A batch is planned (`streamd.state.consumer`), then kept by the store, then shown: rows, feeds and
waiting writers change together, between two awaits. So nobody sees half a batch, or what a crash
could take back.

Limits: a feed holds 10,000 changes for its reader, a batch is one chunk of a read (about 1 MiB),
and the last 10,000 transactions are remembered. The rows are in memory, with a store as well.
"""

from streamd.state.db.collections import Collection
from streamd.state.db.database import StreamDB
from streamd.state.db.feeds import Feed, FeedOverflow
from streamd.state.db.snapshots import ForeignSnapshot, compact
from streamd.state.db.sqlite import (
    SQLite,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
)
from streamd.state.db.writes import DatabaseClosed, Overtaken

__all__ = [
    "Collection",
    "DatabaseClosed",
    "Feed",
    "FeedOverflow",
    "ForeignSnapshot",
    "Overtaken",
    "SQLite",
    "StoreConflict",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreNotFound",
    "StoreReadOnly",
    "StreamDB",
    "compact",
]
