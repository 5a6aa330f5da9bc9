"""What the jobs of one session share: the store, its sources, and common frames."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from streamd_audit.arrow import map_in_arrow
from streamd_audit.findings import Finding
from streamd_audit.listing import Listing, look_through
from streamd_audit.names import is_cluster
from streamd_audit.options import NotRun, Options
from streamd_audit.sources.filters import Filters
from streamd_audit.sources.source import BucketReader, BucketSource
from streamd_audit.store import Store, open_store
from streamd_audit.watermark import Since

T = TypeVar("T")


def columns_of(ddl: str) -> StructType:
    return cast("StructType", StructType.fromDDL(ddl))


class Judged(NamedTuple):
    """A job's result: findings, `few` of which are few by their nature or by a limit, and frames
    with the columns of `findings.FINDINGS_DDL`.

    `facts` is called when the findings are ready: lines of the summary, by their names, and numbers
    for scripts.
    """

    few: Sequence[Finding]
    frames: Sequence[DataFrame]
    facts: Callable[[], Mapping[str, Any]]


@dataclass
class Context:
    """`since` are the entries after which others are judged; None for all. `notes` are facts that
    jobs leave for one another and for the watermark."""

    spark: SparkSession
    options: Options
    since: Since | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    _shared: dict[str, Any] = field(default_factory=dict)
    _kept: list[DataFrame] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    @cached_property
    def store(self) -> Store:
        """Raises `StoreFailed`."""
        return open_store(self.options.store, self.options.of_sources())

    @cached_property
    def cluster(self) -> str:
        """The cluster to judge. Raises `NotRun` if none was named and there are several."""
        found = [folder for folder in self.store.folders() if is_cluster(folder)]
        wanted = self.options.cluster
        if wanted is None and len(found) == 1:
            return found[0]
        if wanted is not None and wanted in found:
            return wanted
        there = f"there are {', '.join(found)}" if found else "the store holds no cluster"
        asked = "say which by --cluster" if wanted is None else f"there is no cluster {wanted}"
        raise NotRun(f"{self.store.place}: {asked}; {there}")

    @cached_property
    def listing(self) -> Listing:
        """The contents of the folder, listed to the end. Raises `StoreFailed`."""
        return look_through(self.store, self.cluster)

    def source(
        self,
        kind: type[BucketSource],
        schema: str,
        filters: Filters | None = None,
        **more: str,
    ) -> DataFrame:
        """The rows of a data source. Only the columns of `schema` are decoded, and only objects are
        read that can have rows which pass `filters`."""
        reader = self._reader(kind, schema, more)
        reader.filters = filters or reader.filters
        return self.read(reader, schema)

    def read(self, reader: BucketReader, schema: str, parts: int | None = None) -> DataFrame:
        """A reader's rows, in this many parts, or in as many as it plans.

        It plans here and now: Spark would start a Python worker for each step of planning, and
        again for each query.
        """
        tasks = reader.partitions()
        count = len(tasks)

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from reader.read(tasks[number])

        numbers = self.spark.range(0, count, 1, max(1, min(parts or count, count)))
        return map_in_arrow(numbers, read, schema)

    def rows(self, kind: type[BucketSource], schema: str, **more: str) -> list[dict[str, Any]]:
        """The rows of a data source that has few, read here and now."""
        reader = self._reader(kind, schema, more)
        batches = (batch for task in reader.partitions() for batch in reader.read(task))
        return [row for batch in batches for row in batch.to_pylist()]

    def _reader(
        self, kind: type[BucketSource], schema: str, more: Mapping[str, str]
    ) -> BucketReader:
        reader = kind({**self.of_sources, **more}).reader(columns_of(schema))
        assert isinstance(reader, BucketReader)
        return reader

    @property
    def of_sources(self) -> dict[str, str]:
        """The options that lead the sources to the cluster's folder."""
        return {**self.options.of_sources(), "cluster": self.cluster}

    def keep(self, frame: DataFrame) -> DataFrame:
        """Store the frame's rows on disk once they are computed, until `close`."""
        self._kept.append(frame.persist(StorageLevel.DISK_ONLY))
        return self._kept[-1]

    def close(self) -> None:
        """Forget all frames: in the same session another audit of the same place reads again."""
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """The value that `make` returned on the first call: a frame that is decoded or shuffled
        once for all jobs."""
        if name not in self._shared:
            self._shared[name] = make()
        return cast("T", self._shared[name])

    def progress(self, text: str) -> None:
        """A line on standard error, with the time since the session began."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"[{minutes:02d}:{seconds:02d}] {text}", file=sys.stderr, flush=True)
