"""The settings of a write: the options of ``df.write`` and ``df.writeStream``, and the columns."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pyspark.sql.types import BinaryType, StringType, StructType

from streamd.client.names import BadName, parse_name
from streamd.spark import options as given
from streamd.spark.options import SERVER, BadOption, Options

STREAM, RECORD = "stream", "record"

_OWN = ("stream", "create", "content_type", "closed", "journal", "parallel", "partitions")
# Options that Spark adds itself.
_SPARKS = ("checkpointlocation", "queryname")
_RETRY_FOR_S = 60.0
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_MAX_EPOCH = 2**53 - 1


@dataclass(frozen=True)
class Settings:
    """`stream` is the stream of all rows, if no column names one; `create` the content type of
    streams to create, if that is allowed."""

    urls: tuple[str, ...]
    cacert: str | None
    retry_for_s: float
    stream: str | None
    create: str | None
    skip_closed: bool
    journal: str
    parallel: int
    same_partitions: bool
    sink_id: str | None = None
    epoch: int = 0
    token: str | None = field(default=None, repr=False)


def stream_settings(options: Options, schema: StructType) -> Settings:
    """The settings of ``df.writeStream``. Raises `BadOption`."""
    given.check_names(options, SERVER + _OWN + _SPARKS, "df.writeStream.format('streamd')")
    return _settings(options, schema)


def batch_settings(options: Options, schema: StructType) -> Settings:
    """The settings of ``df.write``, which also has the options `id` and `epoch`. Raises
    `BadOption`."""
    given.check_names(options, (*SERVER, *_OWN, "id", "epoch"), "df.write.format('streamd')")
    sink_id = given.text(options, "id")
    epoch = given.whole_number(options, "epoch", least=0, most=_MAX_EPOCH)
    if sink_id is not None and _ID.fullmatch(sink_id) is None:
        raise BadOption(f"option id is '{sink_id}'; it must be 1 to 40 of A-Z a-z 0-9 _ -")
    if sink_id is None and epoch is not None:
        raise BadOption("option epoch numbers the writes of one id: give option id with it")
    return _settings(options, schema, sink_id, epoch or 0)


def _settings(
    options: Options, schema: StructType, sink_id: str | None = None, epoch: int = 0
) -> Settings:
    stream = given.text(options, "stream")
    if stream is not None:
        try:
            parse_name(stream)
        except BadName as error:
            raise BadOption(f"option stream: {error}") from None
    _check_columns(schema, stream)
    retry_for_s = given.seconds(options, "retry_for_s")
    creates = given.choice(options, "create", ["false", "true"]) == "true"
    content_type = given.text(options, "content_type")
    if content_type is not None and not creates:
        raise BadOption("option content_type is that of streams to be made: set create to true")
    return Settings(
        tuple(given.urls(options)),
        given.text(options, "cacert"),
        _RETRY_FOR_S if retry_for_s is None else retry_for_s,
        stream,
        (content_type or "application/json") if creates else None,
        given.choice(options, "closed", ["fail", "skip"]) == "skip",
        given.text(options, "journal") or "spark-sink",
        given.whole_number(options, "parallel", least=1, most=64) or 4,
        given.choice(options, "partitions", ["check", "same"]) == "same",
        sink_id,
        epoch,
        given.text(options, "token"),
    )


def _check_columns(schema: StructType, stream: str | None) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    wanted = {RECORD} if stream is not None else {STREAM, RECORD}
    if set(types) != wanted:
        both = f"'{RECORD}'" if stream is not None else f"'{STREAM}' and '{RECORD}'"
        raise BadOption(
            f"the columns are {', '.join(types)}; to write, select {both}: "
            "to_json(struct(...)) makes one record of several columns"
        )
    if not isinstance(types.get(STREAM, StringType()), StringType):
        raise BadOption(f"column {STREAM} must be of type string: it names the row's stream")
    if not isinstance(types[RECORD], StringType | BinaryType):
        raise BadOption(f"column {RECORD} must be of type string or binary")
