"""``streamd create | fork | close | delete | head | list``: streams as wholes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from streamd.client.appending import metadata
from streamd.client.messages import json_object
from streamd.client.names import bucket_path, parse_name
from streamd.client.options import json_option, talks_to_server, type_option
from streamd.client.terminal import exit_on_failure, flush, say, write
from streamd.client.transport import Answer, ApiError, Server
from streamd.headers import (
    CONTENT_TYPE,
    ETAG,
    STREAM_CLOSED,
    STREAM_EARLIEST_OFFSET,
    STREAM_EXPIRES_AT,
    STREAM_FORK_OFFSET,
    STREAM_FORK_SUB_OFFSET,
    STREAM_FORKED_FROM,
    STREAM_NEXT_OFFSET,
    STREAM_SNAPSHOT_OFFSET,
    STREAM_TTL,
)

_DEFAULT_TYPE = "text/plain"
_PAGE = 1000

_ttl_option = click.option(
    "--ttl",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="Expire this long after the last use.",
)
_expires_at_option = click.option(
    "--expires-at", metavar="TIME", help="Expire at this time (RFC 3339)."
)


@click.command()
@click.argument("name")
@type_option
@_ttl_option
@_expires_at_option
@click.option("--closed", is_flag=True, help="Create it closed and empty.")
@click.option("--bucket", "is_bucket", is_flag=True, help="NAME is a bucket to create.")
@json_option
@talks_to_server
def create(
    server: Server,
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
        server.ask("PUT", bucket_path(name))
        say(f"created bucket {name}")
        return
    headers: dict[str, str] = {CONTENT_TYPE: kind or _DEFAULT_TYPE, **_lifetime(ttl, expires_at)}
    if closed:
        headers[STREAM_CLOSED] = "true"
    answer = server.ask("PUT", parse_name(name).path, headers=headers)
    _tell_created(name, answer, as_json)


@click.command()
@click.argument("source")
@click.argument("name")
@click.option("--at", metavar="OFFSET", help="Where it leaves the source. [default: the end]")
@click.option("--sub-offset", type=click.IntRange(min=0), help="Messages or bytes beyond it.")
@type_option
@_ttl_option
@_expires_at_option
@json_option
@talks_to_server
def fork(
    server: Server,
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
    headers: dict[str, str] = {
        STREAM_FORKED_FROM: parse_name(source).path,
        **_lifetime(ttl, expires_at),
    }
    if at is not None:
        headers[STREAM_FORK_OFFSET] = at
    if sub_offset is not None:
        headers[STREAM_FORK_SUB_OFFSET] = str(sub_offset)
    if kind is not None:
        headers[CONTENT_TYPE] = kind
    try:
        answer = server.ask("PUT", parse_name(name).path, headers=headers)
    except ApiError as refusal:
        if refusal.code != "STREAM_NOT_FOUND":
            raise
        with exit_on_failure(source):  # SOURCE is what does not exist
            raise
    _tell_created(name, answer, as_json)


def _lifetime(ttl: int | None, expires_at: str | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    if ttl is not None:
        headers[STREAM_TTL] = str(ttl)
    if expires_at is not None:
        headers[STREAM_EXPIRES_AT] = expires_at
    return headers


def _tell_created(name: str, answer: Answer, as_json: bool) -> None:
    created = answer.status == 201
    if as_json:
        _write_json({"name": name, "created": created, **_facts(answer.headers)})
    elif created:
        say(f"created {name}")
    else:
        say(f"{name} exists with these settings")


@click.command()
@click.argument("name")
@json_option
@talks_to_server
def close(server: Server, name: str, as_json: bool) -> None:
    """Close the stream NAME: it takes no further appends, and readers see its end."""
    answer = server.ask("POST", parse_name(name).path, headers={STREAM_CLOSED: "true"})
    if as_json:
        _write_json({"name": name, **_facts(answer.headers)})
    else:
        say(f"closed {name}")


@click.command()
@click.argument("name")
@click.option("--bucket", "is_bucket", is_flag=True, help="NAME is an empty bucket.")
@talks_to_server
def delete(server: Server, name: str, is_bucket: bool) -> None:
    """Delete the stream NAME and all it holds."""
    path = bucket_path(name) if is_bucket else parse_name(name).path
    backoff = server.backoff()
    try:
        server.ask("DELETE", path, backoff=backoff)
    except ApiError as refusal:
        # An earlier try without an answer may have deleted it.
        if refusal.status != 404 or not backoff.tried:
            raise
    say(f"deleted {'bucket ' if is_bucket else ''}{name}")


@click.command()
@click.argument("name")
@json_option
@talks_to_server
def head(server: Server, name: str, as_json: bool) -> None:
    """Show what NAME is and where it ends, without reading it."""
    facts = _facts(metadata(server, parse_name(name)))
    if as_json:
        _write_json({"name": name, **facts})
        return
    for fact, value in facts.items():
        shown = json.dumps(value) if isinstance(value, bool) else value
        write(f"{fact.replace('_', ' ') + ':':17}{shown}\n".encode())
    flush()


def _facts(headers: Mapping[str, str]) -> dict[str, Any]:
    """The facts about a stream that headers carry."""
    facts: dict[str, Any] = {}
    for fact, header in (
        ("content_type", CONTENT_TYPE),
        ("next_offset", STREAM_NEXT_OFFSET),
        ("snapshot_offset", STREAM_SNAPSHOT_OFFSET),
        ("earliest_offset", STREAM_EARLIEST_OFFSET),
        ("ttl_s", STREAM_TTL),
        ("expires_at", STREAM_EXPIRES_AT),
        ("etag", ETAG),
    ):
        if header in headers:
            value = headers[header]
            facts[fact] = int(value) if fact == "ttl_s" else value
    facts["closed"] = headers.get(STREAM_CLOSED, "").lower() == "true"
    return facts


@click.command("list")
@click.argument("bucket")
@click.option("--prefix", default="", help="Only streams whose ids begin with this.")
@click.option("-l", "--long", "long", is_flag=True, help="Status, size, last write and type too.")
@json_option
@talks_to_server
def list_streams(server: Server, bucket: str, prefix: str, long: bool, as_json: bool) -> None:
    """List the streams of BUCKET, in order, one a line."""
    path = bucket_path(bucket) + "/streams"
    for page in _pages(server, path, prefix):
        for stream in page:
            write(_listed(bucket.strip("/"), stream, long, as_json))
        flush()


def _pages(server: Server, path: str, prefix: str) -> Iterator[list[dict[str, Any]]]:
    params = {"limit": str(_PAGE)}
    if prefix:
        params["prefix"] = prefix
    while True:
        page = server.ask("GET", path, params=params).json()
        yield page["streams"]
        if not page["has_more"]:
            return
        params["after"] = page["next_cursor"]


def _listed(bucket: str, stream: dict[str, Any], long: bool, as_json: bool) -> bytes:
    if as_json:
        return json_object(stream)
    name = f"{bucket}/{stream['stream_id']}"
    if long:
        written = datetime.fromtimestamp(stream["last_write_at_ms"] / 1000, UTC)
        name = (
            f"{stream['status'].lower():7}{stream['tail_offset']:>13}  "
            f"{written:%Y-%m-%d %H:%M:%S}Z  {stream['content_type']:24}  {name}"
        )
    return name.encode() + b"\n"


def _write_json(fields: dict[str, Any]) -> None:
    write(json_object(fields))
    flush()
