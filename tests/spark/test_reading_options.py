"""Options of the formats that read: what is wrong is named, with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from streamd.spark import batch, live, materialized
from streamd.spark.options import BadOption
from streamd.spark.source import StreamdSource

pytestmark = pytest.mark.long

URL = {"url": "http://127.0.0.1:4437"}
TEXT = T.StructType().add("record", T.StringType())
OFFSET = "0000000000000001_0000000000000001"


def refusal(options: dict[str, str], *, live: bool = False, schema: T.StructType = TEXT) -> str:
    source = StreamdSource(CaseInsensitiveDict({**URL, **options}))
    with pytest.raises(BadOption) as caught:
        source.streamReader(schema) if live else source.reader(schema)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"straem": "a"}, "has no option straem; its options are access_key, bucket, "),
        ({}, "exactly one of the options stream"),
        ({"stream": "a", "bucket": "runs"}, "not with stream and bucket"),
        ({"stream": "a", "prefix": "b"}, "prefix goes with option bucket"),
        ({"stream": "a//b"}, "stream has 'a//b', which names no stream"),
        ({"stream": "a/../b"}, "has a part .."),
        ({"stream": " "}, "stream is empty"),
        ({"streams": "a,b"}, "streams is 'a,b'; it must be a JSON array"),
        ({"streams": "[]"}, "streams is '[]'; it must be a JSON array"),
        ({"streams": '["a", "/v1/stream/a"]'}, "names a stream twice"),
        ({"bucket": "a/b"}, "bucket is 'a/b'; it must be the name of one"),
        ({"stream": "a", "url": "here:4437"}, "url has 'here:4437'; it must be http"),
        ({"stream": "a", "url": "http://u:hunter2@h,ftp://u:hunter2@h"}, "url has 'ftp://***@h'"),
        ({"stream": "a", "mode": "lax"}, "mode is 'lax'; it must be permissive or failfast"),
        ({"stream": "a", "on_trimmed": "no"}, "it must be fail or snapshot"),
        ({"stream": "a", "on_deleted": "no"}, "it must be fail or skip"),
        ({"stream": "a", "partition_bytes": "0"}, "must be a number from 1 to"),
        ({"stream": "a", "retry_for_s": "soon"}, "must be a number of seconds"),
        ({"stream": "a", "starting_offset": "12"}, "starting_offset is '12'; it must be -1, "),
        (
            {"stream": "a", "starting_offset": '{"b": "-1"}'},
            "has an offset of b, which is not read",
        ),
        ({"stream": "a", "starting_offset": '{"a": "x"}'}, "has 'x' for a, which is not an offset"),
        ({"bucket": "runs", "starting_offset": OFFSET}, "which belongs to one stream"),
    ],
)
def test_a_wrong_option_of_any_reader_is_named(options: dict[str, str], fault: str) -> None:
    for is_live in (False, True):
        said = refusal(options, live=is_live)
        assert fault in said
        assert "hunter2" not in said


def test_the_page_names_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark-streams.md").read_text()
    for option in {*batch.OPTIONS, *live.OPTIONS, *materialized.OPTIONS}:
        assert f"`{option}" in page, option


def test_an_option_of_one_reader_is_unknown_to_the_other() -> None:
    assert "ending_offset is '{'" not in refusal({"stream": "a", "ending_offset": "{"}, live=True)
    assert "ending_offset is not JSON" in refusal({"stream": "a", "ending_offset": "{"})
    assert "has no option max_records_per_batch" in refusal({"max_records_per_batch": "1"})


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"max_records_per_batch": "1e6"}, "max_records_per_batch is '1e6'; it must be a number"),
        ({"max_bytes_per_batch": "0"}, "max_bytes_per_batch is '0'; it must be a number from 1"),
        ({"max_bytes_per_batch": "1", "max_records_per_batch": "1"}, "cannot be combined"),
        ({"ending_offset": "-1"}, "has no option ending_offset"),
    ],
)
def test_a_wrong_limit_is_named(options: dict[str, str], fault: str) -> None:
    assert fault in refusal({"stream": "a", **options}, live=True)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (T.StructType().add("agent", "string"), "there is no column agent in a stream"),
        (T.StructType().add("offset", "long"), "column offset is a string, not bigint"),
        (
            T.StructType().add("record", T.StructType().add("v", T.VariantType())),
            "record.v is variant, which is not made from JSON",
        ),
        (
            T.StructType().add("record", T.MapType(T.IntegerType(), T.IntegerType())),
            "record is a map whose keys are not strings",
        ),
    ],
)
def test_an_impossible_schema_is_refused(schema: T.StructType, fault: str) -> None:
    assert fault in refusal({"stream": "a"}, schema=schema)
