"""What an earlier run of a query has planned for a batch in other partitions.

Plans are kept by partition. A query that was restarted with another number of partitions, in the
middle of a batch, has its rows in partitions whose plans do not know them: they would be appended
again. No task knows how many partitions there are, so the first one of each worker process in a
run looks at the journals of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from streamd.client import BucketNotFound, Client
from streamd.client.names import parse_name
from streamd.spark.sink.errors import RowsChanged
from streamd.spark.sink.plan import Part, Planned, read_entries
from streamd.spark.sink.unsent import split_digests


class RelocatedRows:
    """The digests of rows by stream, for one batch: the one in which a run of a query began."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._planned: dict[str, set[bytes]] = defaultdict(set)

    def look(self, client: Client, bucket: str) -> None:
        """Raises `StreamdError`."""
        own = parse_name(f"{bucket}/{self._part.producer_id}").path
        for path in _journals(client, bucket, f"{self._part.sink_id}."):
            if path != own:
                for entry in read_entries(client, path)[1]:
                    if entry.epoch == self._part.epoch and entry.run != self._part.run:
                        for request in entry.requests:
                            digests = split_digests(request.digests)
                            self._planned[request.stream].update(digests)

    def concerns(self, part: Part) -> bool:
        """Whether an earlier run has begun this batch in other partitions."""
        return bool(self._planned) and part.epoch == self._part.epoch

    def check(self, requests: Iterable[Planned], part: Part) -> None:
        """Raise `RowsChanged` if rows that `part` has not planned were in another one."""
        for request in requests:
            planned = self._planned.get(request.stream)
            if planned is not None and not planned.isdisjoint(split_digests(request.digests)):
                raise RowsChanged(
                    f"batch {part.epoch}, partition {part.partition}: a row for {request.stream} "
                    "was in another partition when an earlier run began this batch. Restart the "
                    "query with the number of partitions that it had then; or, if it has that, "
                    "and partitions may have equal rows, set option partitions to same"
                )


def _journals(client: Client, bucket: str, prefix: str) -> list[str]:
    """The paths of a sink's journals."""
    try:
        return [stream.path for stream in client.bucket(bucket).streams(prefix=prefix)]
    except BucketNotFound:
        return []
