"""``streamd create | fork | close | delete | head | list``: streams as wholes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from streamd.client import Appended, BucketInfo, Client, ListedStream, StreamInfo, StreamNotFound
from streamd.commands.messages import json_object
from streamd.commands.options import json_option, talks_to_server, type_option
from streamd.commands.terminal import exit_on_failure, flush, say, write

_DEFAULT_TYPE = "text/plain"
# The bucket of streams whose names have none.
_DEFAULT_BUCKET = "_default"
# In the order in which they are shown.
_FACTS = (
    "content_type",
    "next_offset",
    "snapshot_offset",
    "earliest_offset",
    "ttl_s",
    "expires_at",
    "etag",
)

_ttl_option = click.option(
    "--ttl",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="Delete the stream this long after it was last read or written.",
)
_expires_at_option = click.option(
    "--expires-at", metavar="TIME", help="Delete the stream at this time (RFC 3339)."
)


@click.command()
@click.argument("name")
@type_option
@_ttl_option
@_expires_at_option
@click.option("--closed", is_flag=True, help="Create the stream closed and empty.")
@click.option("--bucket", "is_bucket", is_flag=True, help="Create a bucket.")
@json_option
@talks_to_server
def create(
    client: Client,
    name: str,
    kind: str | None,
    ttl: int | None,
    expires_at: str | None,
    closed: bool,
    is_bucket: bool,
    as_json: bool,
) -> None:
    """Create the stream NAME, or confirm that it exists with these settings.

    NAME is a plain name or BUCKET/STREAM; a bucket is made on first use. The stream is text
    unless --type says otherwise.
    """
    if is_bucket:
        client.bucket(name).create()
        say(f"created bucket {name}")
        return
    stream = client.stream(name)
    info = stream.create(kind or _DEFAULT_TYPE, ttl_s=ttl, expires_at=expires_at, closed=closed)
    _tell_created(name, info, as_json)


@click.command()
@click.argument("source")
@click.argument("name")
@click.option(
    "--at",
    metavar="OFFSET",
    help="The offset at which the fork begins. [default: the source's end]",
)
@click.option(
    "--sub-offset",
    type=click.IntRange(min=0),
    help="Messages (JSON) or bytes after --offset that still belong to the fork.",
)
@type_option
@_ttl_option
@_expires_at_option
@json_option
@talks_to_server
def fork(
    client: Client,
    source: str,
    name: str,
    at: str | None,
    sub_offset: int | None,
    kind: str | None,
    ttl: int | None,
    expires_at: str | None,
    as_json: bool,
) -> None:
    """Create NAME with the content of SOURCE up to an offset, without copying it."""
    try:
        made = client.stream(source).fork(
            name,
            at=at,
            sub_offset=sub_offset,
            content_type=kind,
            ttl_s=ttl,
            expires_at=expires_at,
        )
    except StreamNotFound:
        with exit_on_failure(source):  # SOURCE is what does not exist
            raise
    _tell_created(name, made.info, as_json)


def _tell_created(name: str, info: StreamInfo, as_json: bool) -> None:
    if as_json:
        _write_json({"name": name, "created": info.is_new, **_facts(info)})
    elif info.is_new:
        say(f"created {name}")
    else:
        say(f"{name} exists with these settings")


@click.command()
@click.argument("name")
@json_option
@talks_to_server
def close(client: Client, name: str, as_json: bool) -> None:
    """Close the stream NAME: it takes no further appends, and readers see its end."""
    end = client.stream(name).close()
    if as_json:
        _write_json({"name": name, **_facts(end)})
    else:
        say(f"closed {name}")


@click.command()
@click.argument("name")
@click.option("--bucket", "is_bucket", is_flag=True, help="Delete an empty bucket.")
@talks_to_server
def delete(client: Client, name: str, is_bucket: bool) -> None:
    """Delete the stream NAME and all it holds."""
    if is_bucket:
        client.bucket(name).delete()
    else:
        client.stream(name).delete()
    say(f"deleted {'bucket ' if is_bucket else ''}{name}")


@click.command()
@click.argument("name")
@json_option
@talks_to_server
def head(client: Client, name: str, as_json: bool) -> None:
    """Show what NAME is and where it ends, without reading it."""
    facts = _facts(client.stream(name).head())
    if as_json:
        _write_json({"name": name, **facts})
        return
    for fact, value in facts.items():
        shown = json.dumps(value) if isinstance(value, bool) else value
        write(f"{fact.replace('_', ' ') + ':':17}{shown}\n".encode())
    flush()


def _facts(found: StreamInfo | Appended) -> dict[str, Any]:
    """The fields of an answer about a stream that are present."""
    told = found._asdict()
    facts = {fact: told[fact] for fact in _FACTS if told.get(fact) not in (None, "")}
    return {**facts, "closed": found.closed}


@click.command("list")
@click.argument("bucket", required=False)
@click.option("--prefix", default="", help="List only names that begin with this prefix.")
@click.option(
    "-l", "--long", "long", is_flag=True, help="Show status, size, last write and type too."
)
@json_option
@talks_to_server
def list_streams(
    client: Client, bucket: str | None, prefix: str, long: bool, as_json: bool
) -> None:
    """List the streams of BUCKET, in order, one a line; without BUCKET the buckets.

    Streams without a bucket, such as chat, are in the bucket _default.
    """
    if bucket is None:
        for found in client.buckets(prefix=prefix):
            write(_listed_bucket(found, long, as_json))
    else:
        for stream in client.bucket(bucket).streams(prefix=prefix):
            write(_listed(bucket.strip("/"), stream, long, as_json))
    flush()


def _listed_bucket(bucket: BucketInfo, long: bool, as_json: bool) -> bytes:
    if as_json:
        return json_object(msgspec.to_builtins(bucket))
    name = bucket.bucket_id
    if long:
        created = datetime.fromtimestamp(bucket.created_at_ms / 1000, UTC)
        name = f"{bucket.streams:>9}  {created:%Y-%m-%d %H:%M:%S}Z  {name}"
    return name.encode() + b"\n"


def _listed(bucket: str, stream: ListedStream, long: bool, as_json: bool) -> bytes:
    if as_json:
        return json_object(msgspec.to_builtins(stream))
    name = stream.stream_id if bucket == _DEFAULT_BUCKET else f"{bucket}/{stream.stream_id}"
    if long:
        written = datetime.fromtimestamp(stream.last_write_at_ms / 1000, UTC)
        name = (
            f"{stream.status.lower():7}{stream.tail_offset:>13}  "
            f"{written:%Y-%m-%d %H:%M:%S}Z  {stream.content_type:24}  {name}"
        )
    return name.encode() + b"\n"


def _write_json(fields: dict[str, Any]) -> None:
    write(json_object(fields))
    flush()
