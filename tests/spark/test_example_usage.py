"""The usage report counts the bytes that clients sent, and the bytes stored of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from bench.bucket import Shape, Written, write_bucket
from examples.usage.page import size_shown
from examples.usage.report import main, write_usage
from streamd.objectstore.fs import FsStore
from streamd_audit.options import Options

pytestmark = pytest.mark.long


class Report(NamedTuple):
    """A report, and the bucket that it is about, half of which is in one stream."""

    spark: SparkSession
    store: Path
    out: Path
    written: Written

    def table(self, name: str) -> DataFrame:
        return self.spark.read.parquet(str(self.out / "usage" / name))


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Report:
    directory = tmp_path_factory.mktemp("usage")
    store, out = directory / "cold", directory / "out"
    shape = Shape(megabytes=2, entries=2_000, skewed=True)
    written = write_bucket(FsStore(store), directory / "rows", shape)
    assert write_usage(spark, Options(str(store)), out) == out / "usage.html"
    return Report(spark, store, out, written)


def test_every_byte_that_was_appended_is_counted_once(report: Report) -> None:
    found = report.table("days").groupBy().sum("bytes", "appends", "created").first()
    streams = report.table("streams").select("bucket", "stream").distinct().count()
    assert found is not None
    assert found["sum(bytes)"] == report.written.record_bytes
    assert found["sum(appends)"] + found["sum(created)"] == 2_000
    assert found["sum(created)"] == streams


def test_growth_is_the_sum_of_the_days_before(report: Report) -> None:
    rows = report.table("days").orderBy("bucket", "day").collect()
    so_far: dict[str, int] = {}
    for row in rows:
        so_far[row.bucket] = so_far.get(row.bucket, 0) + row.bytes
        assert row.total_bytes == so_far[row.bucket]
    # Ten days from a morning on.
    assert len({row.day for row in rows}) == 11


def test_the_stream_with_half_of_all_is_the_hot_spot_of_its_bucket_and_days(report: Report) -> None:
    rows = report.table("hot_spots").where("bucket = 'large'").collect()
    assert {(row.stream, row.place, row.share) for row in rows} == {("runs/000000", 1, 1.0)}
    others = report.table("hot_spots").where("bucket != 'large'")
    assert others.where("place > 10 or share <= 0 or share > 1").count() == 0


def test_objects_are_counted_with_their_sizes(report: Report) -> None:
    for kind, suffix in (("log segments", "segment"), ("packs", "pack"), ("states", "piece")):
        sizes = [path.stat().st_size for path in report.store.rglob(f"*.{suffix}")]
        row = report.table("objects").where(f"kind = '{kind}'").first()
        assert row is not None
        assert (row.objects, row.stored_bytes) == (len(sizes), sum(sizes))
        assert row.content_bytes >= row.stored_bytes


def test_the_page_shows_the_same_figures(report: Report) -> None:
    page = (report.out / "usage.html").read_text()
    assert f"Usage of {report.store}" in page
    assert size_shown(report.written.record_bytes) in page
    assert page.count("<svg") == 3


def test_the_report_needs_a_cluster_in_the_store(report: Report, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="no report: no cluster has a folder"):
        main(["--store", str(tmp_path / "empty"), "--out", str(tmp_path / "out")])


def test_the_command_of_the_readme_prints_the_path_of_the_page(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--store", str(report.store), "--out", str(tmp_path)])
    assert capsys.readouterr().out == f"{tmp_path / 'usage.html'}\n"
