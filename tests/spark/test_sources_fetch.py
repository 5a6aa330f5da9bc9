"""The data sources fetch only what can match and is requested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan

from streamd_audit.names import PackName, SegmentName, parse, split
from streamd_audit.segments import HEAD_BYTES
from streamd_audit.sources import register
from tests.spark.buckets import Clean
from tests.spark.reading import CountingProxy, InProcess, access

pytestmark = pytest.mark.long

PACK_TAIL_BYTES = 64 * 1024


@pytest.fixture
def proxy(rich: Clean) -> Iterator[CountingProxy]:
    with CountingProxy(rich.place.minio.port) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """Spark reads the schemas."""


class Opens:
    def __init__(self, rich: Clean, proxy: CountingProxy) -> None:
        self._options = access(rich.place, proxy.endpoint)

    def __call__(self, name: str, schema: str, *filters: Filter, **options: str) -> InProcess:
        return InProcess(name, schema, {**self._options, **options}, filters)


@pytest.fixture
def open_(rich: Clean, proxy: CountingProxy) -> Opens:
    return Opens(rich, proxy)


def segments(rich: Clean) -> dict[SegmentName, bytes]:
    found = {parse(split(name)[1]): content for name, content in sorted(rich.objects.items())}
    return {name: content for name, content in found.items() if isinstance(name, SegmentName)}


def packs(rich: Clean) -> dict[str, bytes]:
    return {
        name: content
        for name, content in sorted(rich.objects.items())
        if isinstance(parse(split(name)[1]), PackName)
    }


def test_a_filter_on_indexes_fetches_only_the_segments_that_hold_them(
    rich: Clean, proxy: CountingProxy, open_: Opens
) -> None:
    names = list(segments(rich))
    wanted = names[len(names) // 2]
    rows = open_("streamd_log", "index long", EqualTo(("index",), wanted.first)).rows()
    assert {row["index"] for row in rows} == {wanted.first}
    [fetched] = proxy.objects("segment")
    assert wanted.digest in fetched.name


def test_a_filter_on_time_fetches_heads_and_then_only_matching_segments(
    rich: Clean, proxy: CountingProxy, open_: Opens
) -> None:
    heads = open_("streamd_segments", "object string, first_ms long, last_ms long").rows()
    since_ms = heads[-1]["last_ms"]
    matching = {row["object"] for row in heads if row["last_ms"] >= since_ms}
    assert 0 < len(matching) < len(heads)
    assert [one.size for one in proxy.objects("segment")] == [HEAD_BYTES] * len(heads)

    proxy.fetched.clear()
    rows = open_(
        "streamd_log", "index long, log_ms long", GreaterThanOrEqual(("log_ms",), since_ms)
    ).rows()
    assert rows
    assert all(row["log_ms"] >= since_ms for row in rows)
    whole = [one for one in proxy.objects("segment") if one.size > HEAD_BYTES]
    assert {one.name.partition("/clean/rich/")[2] for one in whole} == matching
    assert len(proxy.objects("segment")) == len(heads) + len(whole)


@pytest.mark.parametrize("source", ["streamd_log", "streamd_packs", "streamd_manifests"])
def test_nothing_is_fetched_for_an_absent_group(
    source: str, proxy: CountingProxy, open_: Opens
) -> None:
    found = open_(source, "`group` int, object string, problem string", EqualTo(("group",), 7))
    assert found.rows() == []
    assert all(not one.name for one in proxy.fetched)


def test_names_and_sizes_are_read_without_the_objects(
    rich: Clean, proxy: CountingProxy, open_: Opens
) -> None:
    for source, kind in (("streamd_packs", "pack"), ("streamd_segments", "segment")):
        rows = open_(source, "object string, size long").rows()
        assert {row["object"]: row["size"] for row in rows} == {
            name: len(content)
            for name, content in rich.objects.items()
            if name.endswith(f".{kind}")
        }
    assert all(not one.name for one in proxy.fetched)


def test_positions_of_slices_are_read_from_footers_alone(
    rich: Clean, proxy: CountingProxy, open_: Opens
) -> None:
    rows = open_("streamd_slices", "object string, stream_id long, offset long").rows()
    assert {row["object"] for row in rows} == set(packs(rich))
    assert len(proxy.objects("pack")) == len(packs(rich))
    assert all(one.size <= PACK_TAIL_BYTES for one in proxy.objects("pack"))


def test_a_filter_on_stream_ids_fetches_footers_and_their_slices(
    rich: Clean, proxy: CountingProxy, open_: Opens
) -> None:
    refs = open_("streamd_slices", "object string, stream_id long, length long").rows()
    by_stream: dict[int, int] = {}
    for row in refs:
        by_stream[row["stream_id"]] = by_stream.get(row["stream_id"], 0) + row["length"]
    wanted = min(by_stream, key=lambda stream_id: by_stream[stream_id])
    footers = sum(one.size for one in proxy.objects("pack"))

    proxy.fetched.clear()
    rows = open_(
        "streamd_slices", "stream_id long, payload binary", EqualTo(("stream_id",), wanted)
    ).rows()
    assert {row["stream_id"] for row in rows} == {wanted}
    assert all(row["payload"] for row in rows)
    fetched = sum(one.size for one in proxy.objects("pack"))
    assert fetched == footers + by_stream[wanted]


def test_neighbouring_slices_are_fetched_in_one_request(
    rich: Clean, proxy: CountingProxy, open_: Opens
) -> None:
    refs = open_("streamd_slices", "object string, stream_id long").rows()
    ids = tuple({row["stream_id"] for row in refs})
    proxy.fetched.clear()
    rows = open_("streamd_slices", "payload binary", In(("stream_id",), ids)).rows()
    assert len(rows) == len(refs)
    # A footer and one run of slices.
    assert len(proxy.objects("pack")) == 2 * len(packs(rich))


def test_a_whole_pack_is_read_by_one_request(
    rich: Clean, proxy: CountingProxy, open_: Opens
) -> None:
    open_("streamd_slices", "payload binary, pack_sha256_ok boolean, problem string").rows()
    assert sorted(one.size for one in proxy.objects("pack")) == sorted(
        len(content) for content in packs(rich).values()
    )


def test_filters_on_streams_and_kinds_leave_out_rows(open_: Opens) -> None:
    schema = "index long, position int, kind string, bucket string, stream string, digests binary"
    rows = open_("streamd_log", schema).rows()
    streams = sorted({row["stream"] for row in rows if row["kind"] == "append"})
    wanted = streams[0]
    found = open_(
        "streamd_log", schema, EqualTo(("stream",), wanted), EqualTo(("kind",), "append")
    ).rows()
    assert found == [row for row in rows if (row["stream"], row["kind"]) == (wanted, "append")]
    assert 0 < len(found) < len(rows)


@pytest.mark.parametrize("source", ["streamd_log", "streamd_slices"])
def test_large_objects_are_read_in_parts_that_make_a_whole(source: str, open_: Opens) -> None:
    order = "index, position" if source == "streamd_log" else "object, slice"
    schema = (
        "index long, position int, chain long, digests binary, head binary, object string"
        if source == "streamd_log"
        else "object string, slice int, stream_id long, payload binary, appends array<int>"
    )
    keys = [(name, "ascending") for name in order.split(", ")]
    whole = open_(source, schema)
    split_up = open_(source, schema, task_bytes="700")
    assert any(parts > 2 for _, _, parts in split_up.pieces)
    assert len(split_up.tasks) > len(whole.tasks)
    assert split_up.table().sort_by(keys).to_pylist() == whole.table().sort_by(keys).to_pylist()


def test_the_parts_of_a_pack_fetch_their_own_slices(
    rich: Clean, proxy: CountingProxy, open_: Opens
) -> None:
    largest = max(packs(rich), key=lambda name: len(packs(rich)[name]))
    size = len(packs(rich)[largest])
    found = open_(
        "streamd_slices",
        "slice int, payload binary",
        EqualTo(("object",), largest),
        task_bytes=str(-(-size // 4)),
    )
    assert [parts for _, _, parts in found.pieces] == [4] * 4
    proxy.fetched.clear()
    found.rows()
    refs = open_("streamd_slices", "object string, length long", EqualTo(("object",), largest))
    slices = sum(row["length"] for row in refs.rows())
    tails = [one.size for one in proxy.objects("pack")][-1]
    assert sum(one.size for one in proxy.objects("pack")) == slices + 5 * tails


def test_spark_tells_a_source_its_filters(
    spark: SparkSession, rich: Clean, proxy: CountingProxy
) -> None:
    register(spark)
    last = max(name.last for name in segments(rich))
    log = (
        spark.read.format("streamd_log")
        .options(**access(rich.place, proxy.endpoint), pushdown="true")
        .schema("index long, kind string")
        .load()
    )
    rows = log.filter(f"index >= {last} and kind is not null").collect()
    assert {row["index"] for row in rows} == {last}
    assert len({one.name for one in proxy.objects("segment")}) == 1


def test_queries_of_one_dataframe_do_not_share_their_filters(
    spark: SparkSession, rich: Clean, proxy: CountingProxy
) -> None:
    """Spark would give the second and third of these only the rows of the first one's filter."""
    register(spark)
    log = spark.read.format("streamd_log").options(**access(rich.place)).schema("index long").load()
    first = segments(rich)
    some = min(name.first for name in first)
    less = log.filter(f"index = {some}").count()
    every = log.count()
    assert log.union(log.filter(f"index = {some}")).count() == every + less
    assert every > less > 0
    assert less == len(
        [
            row
            for row in InProcess(
                "streamd_log", "index long", access(rich.place), [LessThan(("index",), some + 1)]
            ).rows()
            if row["index"] == some
        ]
    )
