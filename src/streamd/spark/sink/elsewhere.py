"""What an earlier run of a query has planned for a batch in other partitions.

Plans are kept by partition. A query that was restarted with another number of partitions, in the
middle of a batch, has its rows in partitions whose plans do not know them: they would be appended
again. No task knows how many partitions there are, so the first one of each worker process in a
run looks at the journals of the others.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from streamd.client.names import parse_name
from streamd.client.transport import ApiError, Server
from streamd.spark.sink.errors import RowsChanged
from streamd.spark.sink.held import split_digests
from streamd.spark.sink.plan import Part, Planned, read_entries

_PAGE = 1000


class Elsewhere:
    """The digests of rows by stream, for one batch: the one in which a run of a query began."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._planned: dict[str, set[bytes]] = defaultdict(set)

    def look(self, server: Server, bucket: str) -> None:
        """Raises `ApiError`, `Unreachable`."""
        own = parse_name(f"{bucket}/{self._part.producer_id}").path
        for path in _journals(server, bucket, f"{self._part.sink_id}."):
            if path != own:
                for entry in read_entries(server, path)[1]:
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


def _journals(server: Server, bucket: str, prefix: str) -> list[str]:
    """The paths of a sink's journals."""
    paths: list[str] = []
    params = {"prefix": prefix, "limit": str(_PAGE)}
    while True:
        try:
            page = json.loads(server.ask("GET", f"/{bucket}/streams", params=params).body)
        except ApiError as refusal:
            if refusal.code == "BUCKET_NOT_FOUND":
                return []
            raise
        paths += [stream["path"] for stream in page["streams"]]
        if not page["has_more"]:
            return paths
        params["after"] = page["next_cursor"]
