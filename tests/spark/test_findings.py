"""Findings: their kinds, and their transport through Spark and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from streamd_audit.arrow import map_in_arrow
from streamd_audit.findings import (
    FINDINGS_ARROW,
    FINDINGS_DDL,
    KINDS,
    SEVERITIES,
    Finding,
    finding,
    findings_batch,
)
from streamd_audit.options import NOT_RUN, Options, parse, parser, start

pytestmark = pytest.mark.long


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_explains_the_fault_and_its_causes(kind: str) -> None:
    known = KINDS[kind]
    assert re.fullmatch(r"[a-z]+(_[a-z]+)+", kind)
    assert known.severity in SEVERITIES
    assert 0 < len(known.title) <= 80
    assert known.cause


def test_the_schemas_have_the_fields_of_a_finding() -> None:
    assert [field.name for field in fields(Finding)] == FINDINGS_ARROW.names
    assert [part.split()[0].strip("`") for part in FINDINGS_DDL.split(",")] == FINDINGS_ARROW.names


def test_a_position_is_reported_as_a_readers_offset() -> None:
    found = finding("slice_gap", offset=(7, 1200))
    assert found.offset == "0000000000000007_0000000000001200"
    assert found.severity == KINDS["slice_gap"].severity


def test_findings_pass_through_spark_unchanged(spark: SparkSession) -> None:
    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield findings_batch(
                finding("log_gap", group=0, index=number, expected=b"x", cause="why")
                for number in batch.column(0).to_pylist()
            )
            yield findings_batch(())

    rows = map_in_arrow(spark.range(1, 3, numPartitions=1), find, FINDINGS_DDL).collect()
    assert [Finding(*row) for row in rows] == [
        finding("log_gap", group=0, index=number, expected=b"x", cause="why") for number in (1, 2)
    ]


def test_command_lines_have_every_option() -> None:
    given = ["--store", "s3://b/p", "--since", "17", "--out", "o", "--access-key", "k"]
    options = parse(parser("a job"), given)
    assert options == Options("s3://b/p", Path("o"), since=17, access_key="k")
    assert options.of_sources() == {"store": "s3://b/p", "access_key": "k"}
    # A token on the command line would show in lists of processes.
    assert {field.name for field in fields(Options)} - {"token"} == vars(
        parser("").parse_args(given)
    ).keys()


@pytest.mark.parametrize("since", ["-1", "first", ""])
def test_a_malformed_index_is_a_usage_error(since: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(parser("a job"), ["--store", "x", "--since", since])
    assert caught.value.code == NOT_RUN
    assert "--since" in capsys.readouterr().err


def test_an_error_of_the_audit_itself_is_not_reported_as_findings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert start("names") == NOT_RUN
    assert capsys.readouterr().err.splitlines()[-1].startswith("could not be run: AttributeError")
