"""Data sources read in this process, through a proxy that counts the fetched bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from streamd_audit.sources import SOURCES
from streamd_audit.sources.planning import Task
from tests.spark.buckets import Clean, Place
from tests.support.s3_proxy import S3Proxy


class Fetched(NamedTuple):
    """An answer with a body: of an object, or of a listing (no name)."""

    name: str
    size: int


class CountingProxy(S3Proxy):
    """Records what is fetched, in the order of the answers."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__(upstream_port)
        self.fetched: list[Fetched] = []

    def forward(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Any:
        answer = super().forward(method, path, headers, body)
        parts = urlsplit(path)
        name = "" if "list-type" in parts.query else unquote(parts.path)
        self.fetched.append(Fetched(name, len(answer.body)))
        return answer

    def objects(self, kind: str) -> list[Fetched]:
        """What was fetched of objects of one kind, such as ``pack``."""
        return [one for one in self.fetched if one.name.endswith(f".{kind}")]


def access(place: Place, endpoint: str | None = None) -> dict[str, str]:
    """The options of a source, or of a job, that reads a place."""
    minio = place.minio
    return {
        "store": place.url,
        "endpoint": endpoint or minio.endpoint,
        "access_key": minio.access_key_id,
        "secret_key": minio.secret_access_key,
    }


class InProcess:
    """A source, planned and read in this process as Spark's workers do it."""

    def __init__(
        self,
        name: str,
        schema: str | None,
        options: Mapping[str, str],
        filters: Iterable[Filter] = (),
    ) -> None:
        [kind] = [source for source in SOURCES if source.name() == name]
        source = kind({**options, "pushdown": "true"})
        self._reader = source.reader(
            cast("StructType", StructType.fromDDL(schema or source.schema()))
        )
        self._reader.pushFilters(list(filters))
        self.tasks = self._reader.partitions()

    def table(self) -> pa.Table:
        """All rows."""
        batches = [batch for task in self.tasks for batch in self._reader.read(task)]
        return pa.Table.from_batches(batches) if batches else pa.table({})

    def rows(self) -> list[dict[str, Any]]:
        return list(self.table().to_pylist())

    @property
    def pieces(self) -> list[tuple[str, int, int]]:
        """The objects that tasks read, and which part of how many."""
        tasks = [task for task in self.tasks if isinstance(task, Task)]
        return [(one.name, one.part, one.parts) for task in tasks for one in task.pieces or ()]


def copy_of(clean: Clean, directory: Path, changed: Mapping[str, bytes | None]) -> dict[str, str]:
    """Write a clean bucket's objects below a directory, some of them changed, or left out (None).

    Returns the options that lead there.
    """
    for name, content in {**clean.objects, **changed}.items():
        if content is not None:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return {"store": str(directory)}
