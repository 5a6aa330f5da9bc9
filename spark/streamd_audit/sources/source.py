"""What all sources have in common: their options, their columns, and how they plan and read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.names import ObjectName, is_cluster, parse
from streamd_audit.one_line import one_line
from streamd_audit.sources.filters import Filters
from streamd_audit.sources.planning import Piece, Planner, Task
from streamd_audit.store import OPTIONS as STORE_OPTIONS
from streamd_audit.store import Store, open_store

# A batch is passed on when it has this many rows, or this many bytes in them.
BATCH_ROWS = 8192
BATCH_BYTES = 8 * 1024 * 1024

_OPTIONS = ("store", "path", "cluster", "task_bytes", "pushdown", *STORE_OPTIONS)


class BadOption(ValueError):
    """An option of a source is missing or wrong; the message says which."""


def columns(ddl: str) -> dict[str, str]:
    """Names and types of the columns in ``"name type, name type"``; types have no spaces."""
    return dict(column.split(" ") for column in ddl.split(", "))


@one_line
class BucketSource(DataSource):
    """A source of rows about one kind of object in a cluster's folder."""

    NAME: ClassVar[str]
    # The SQL type of each column, in Spark's own spelling. All may be null.
    COLUMNS: ClassVar[Mapping[str, str]]
    READER: ClassVar[type[BucketReader]]
    # The options of this source besides those of all sources.
    MORE_OPTIONS: ClassVar[Sequence[str]] = ()

    @classmethod
    def name(cls) -> str:
        return cls.NAME

    def schema(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in self.COLUMNS.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        known = (*_OPTIONS, *self.MORE_OPTIONS)
        options = {key.lower(): value for key, value in self.options.items()}
        for option in options:
            if option not in known:
                raise BadOption(f"{self.name()} has no option {option!r}")
        for field in schema.fields:
            kind, wanted = self.COLUMNS.get(field.name), field.dataType.simpleString()
            if kind is None:
                raise BadOption(f"{self.name()} has no column {field.name!r}")
            if wanted != kind:
                raise BadOption(f"{self.name()}: column {field.name} is {kind}, not {wanted}")
        reader = self.READER(options, schema)
        return _Pushing(reader) if options.get("pushdown", "").lower() == "true" else reader


@one_line
class BucketReader(DataSourceReader):
    """Plans on the driver and reads on the workers; only what the schema names is decoded."""

    # The folder, below the cluster's, that holds the objects.
    FOLDER: ClassVar[str]
    TASK_BYTES: ClassVar[int] = 64 * 1024 * 1024

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = dict(options)
        self.schema = schema
        self.columns = frozenset(schema.fieldNames())
        self.filters = Filters()
        self.cluster = self.options.get("cluster", "")
        self.task_bytes = int(self.options.get("task_bytes", self.TASK_BYTES))

    def partitions(self) -> Sequence[InputPartition]:
        store = self.open()
        self.cluster = self.cluster or the_only_cluster(store)
        planner = Planner(self.cluster, self.task_bytes)
        if self.filters.admits("cluster", self.cluster):
            for piece in self.pieces(store):
                planner.add(piece, self.parts_of(piece.name, piece.size))
        return planner.finish()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):  # Spark's own, if nothing was planned
            return iter(())
        return self._read(partition)

    def _read(self, task: Task) -> Iterator[pa.RecordBatch]:
        # Spark sends the workers this reader as it was before it planned.
        self.cluster = task.cluster
        store = self.open()
        yield from self.batches(store, task.pieces or self._between(store, task))

    def _between(self, store: Store, task: Task) -> Iterator[Piece]:
        before = task.first[:-1]  # no other name lies between, because names end with their digest
        for piece in self.pieces(store, before, task.after):
            if piece.name > task.last:
                return
            if self.parts_of(piece.name, piece.size) == 1:
                yield piece

    # -- defined by each source -----------------------------------------------------------------

    @abstractmethod
    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows about these objects, a bounded batch at a time."""

    def wants(self, name: str, size: int) -> bool:
        """Whether an object, called `name` below the cluster's folder, can have rows that the
        filters let through."""
        return True

    def parts_of(self, name: str, size: int) -> int:
        """The number of tasks in which to read an object."""
        return 1

    def pieces(self, store: Store, after: str = "", after_index: int = 0) -> Iterator[Piece]:
        """The wanted objects that come after this name, in the order of names.

        `after_index` is the last entry of the log for which earlier objects are read.
        """
        for name, size in self.listed(store, after):
            yield Piece(name, size)

    # -- helpers --------------------------------------------------------------------------------

    def open(self) -> Store:
        """The store that the options name. Raises a one-line error if it cannot be opened."""
        url = self.options.get("store") or self.options.get("path")
        if not url:
            raise BadOption("the option 'store' is missing: a directory, or s3://BUCKET/PREFIX")
        given = [(name, self.options[name]) for name in STORE_OPTIONS if name in self.options]
        return _opened(url, tuple(given))

    def below(self, name: str) -> str:
        """An object's name below the cluster's folder."""
        return name[len(self.cluster) + 1 :]

    def listed(self, store: Store, after: str = "") -> Iterator[tuple[str, int]]:
        """The names and sizes in bytes of the wanted objects, in the order of names."""
        for page in store.list(f"{self.cluster}/{self.FOLDER}", after):
            for name, size in page:
                if self.wants(self.below(name), size):
                    yield name, size

    def batch(
        self, rows: int, own: Mapping[str, Any], column: Callable[[str], Any]
    ) -> pa.RecordBatch:
        """A batch of rows with the columns of the schema: those in `own` have one value for all
        rows, others are requested by name, as a list or an array."""
        schema = to_arrow_schema(self.schema)
        arrays = []
        for field in schema:
            if field.name in own:
                arrays.append(pa.repeat(pa.scalar(own[field.name], field.type), rows))
                continue
            found = column(field.name)
            if not isinstance(found, pa.Array):
                found = array_of(found, field.type)
            arrays.append(found if found.type == field.type else found.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def row(self, **values: Any) -> pa.RecordBatch:
        """One row, null in columns that are not given."""
        return self.batch(1, values, lambda _: [None])

    def problem_row(self, damaged: Damaged, **values: Any) -> pa.RecordBatch:
        """A row that reports damage and has these `values`, including the object.

        Raises the damage if the schema has no column for it: damage never goes unseen.
        """
        problem = self.told(damaged, values["object"])
        return self.row(cluster=self.cluster, problem=problem, **values)

    def told(self, damaged: Damaged, where: str = "") -> str:
        """The text for damage in a row: its kind, a colon, and the details.

        Raises the damage if the schema has no column for it.
        """
        if "problem" not in self.columns:
            raise Damaged(damaged.kind, f"{where}: {damaged.detail}".removeprefix(": "), damaged.at)
        return f"{damaged.kind}: {damaged.detail}"


class ObjectReader(BucketReader):
    """Reads one row about each object: what its name says, and what `look` finds in it."""

    NAMES: ClassVar[type[ObjectName]]
    # The columns that the name tells, and the fields of the name that they are.
    OF_NAME: ClassVar[Mapping[str, str]]

    @abstractmethod
    def look(self, store: Store, piece: Piece, name: Any, row: dict[str, Any]) -> None:
        """Fill the requested columns of a row, up to damage.

        `name` is of the type `NAMES`. Raises `Damaged`, `ObjectMissing`.
        """

    def wants(self, name: str, size: int) -> bool:
        found = parse(name)
        return isinstance(found, self.NAMES) and all(
            self.filters.admits(column, getattr(found, field))
            for column, field in self.OF_NAME.items()
        )

    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            name = parse(self.below(piece.name))
            if not isinstance(name, self.NAMES):
                continue
            row = {column: getattr(name, field) for column, field in self.OF_NAME.items()}
            row.update(cluster=self.cluster, object=piece.name, size=piece.size)
            try:
                self.look(store, piece, name, row)
            except ObjectMissing:
                continue  # merged or removed since it was listed
            except Damaged as damaged:
                row["problem"] = self.told(damaged, piece.name)
            yield self.row(**row)


def holds(check: Callable[..., object], *about: Any) -> bool:
    """Whether a check finds no damage."""
    try:
        check(*about)
    except Damaged:
        return False
    return True


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values that do not fit, such as forged numbers beyond 63 bits, become null."""
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowInvalid):
        return pa.array([value if _fits(value, kind) else None for value in values], kind)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (OverflowError, pa.ArrowInvalid):
        return False
    return True


@one_line
class _Pushing(DataSourceReader):
    """A reader that gets the query's filters, for a DataFrame that is used in one query only.

    Spark (4.1 to 4.3) keeps the plan that it made with one query's filters, and uses it for
    everything else that is made of the same DataFrame: ``log.union(log.filter("index > 9"))`` would
    have the second part twice. So filters are pushed only if ``pushdown`` allows it.
    """

    def __init__(self, reader: BucketReader) -> None:
        self._reader = reader

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters as bounds; Spark applies all of them again."""
        self._reader.filters = Filters(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)


@lru_cache(maxsize=4)
def _opened(url: str, options: tuple[tuple[str, str], ...]) -> Store:
    """Kept from task to task: all tasks can use a worker's connections."""
    return open_store(url, dict(options))


def the_only_cluster(store: Store) -> str:
    """The cluster of a store with only one. Raises `BadOption`, which names the existing ones."""
    found = [folder for folder in store.folders() if is_cluster(folder)]
    if not found:
        raise BadOption(f"no cluster has a folder in {store.place}")
    if len(found) > 1:
        raise BadOption(f"several clusters are in {store.place}, choose one: {', '.join(found)}")
    return found[0]
