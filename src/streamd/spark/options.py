"""The options of the formats, read strictly: an error names the option, and what is allowed.

Spark passes options as text, in a dictionary that ignores case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streamd.client.connecting import url_list
from streamd.client.names import BadName, parse_name
from streamd.process.redaction import shown
from streamd_audit.options import OF_SOURCES

DEFAULT_BUCKET = "_default"
_V1 = "/v1/stream/"

# Where streams are: a server, or the cold store without one.
SERVER = ("url", "cacert", "token", "retry_for_s")
STORE = OF_SOURCES
WHERE = SERVER + STORE
# Options that select the streams.
WHICH = ("stream", "streams", "bucket", "prefix")


class BadOption(ValueError):
    """An option has an impossible value, is missing, or is unknown."""


Options = Mapping[str, str]


class Stores(NamedTuple):
    """A cluster's folder in a store, and the options for reaching the store."""

    url: str
    cluster: str | None
    options: tuple[tuple[str, str], ...]


def check_names(options: Options, allowed: Iterable[str], use: str) -> None:
    """Raise `BadOption` for an option that `use` does not know."""
    known = sorted(allowed)
    for name in options:
        if name.lower() not in known:
            raise BadOption(f"{use} has no option {name}; its options are {', '.join(known)}")


def text(options: Options, name: str) -> str | None:
    """An option's value; an empty one is refused."""
    value = options.get(name)
    if value is not None and not value.strip():
        raise BadOption(f"option {name} is empty")
    return value


def whole_number(options: Options, name: str, *, least: int, most: int) -> int | None:
    """An option's number; None without it. Raises `BadOption` outside of `least` to `most`."""
    value = text(options, name)
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
        raise BadOption(f"option {name} is '{value}'; it must be a number from {least} to {most}")
    return int(value)


def seconds(options: Options, name: str) -> float | None:
    """An option's time in seconds; None without it. Raises `BadOption`."""
    value = text(options, name)
    if value is None:
        return None
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise BadOption(f"option {name} is '{value}'; it must be a number of seconds")
    return found


def choice(options: Options, name: str, choices: Iterable[str]) -> str:
    """One of some words, whatever their case; the first of them by default."""
    allowed = list(choices)
    value = text(options, name)
    if value is None:
        return allowed[0]
    if value.lower() not in allowed:
        raise BadOption(f"option {name} is '{value}'; it must be {' or '.join(allowed)}")
    return value.lower()


def urls(options: Options) -> list[str]:
    """Option `url`: URLs of one or more nodes of a cluster, separated by commas."""
    value = text(options, "url")
    if value is None:
        raise BadOption("option url is missing: name one or more servers, separated by commas")
    found = [url.strip() for url in value.split(",")]
    for url in found:
        try:
            url_list([url])
        except ValueError:
            raise BadOption(
                f"option url has '{shown(url)}'; it must be http://HOST:PORT or https://HOST:PORT"
            ) from None
    return found


def stream_name(written: str, option: str) -> str:
    """A stream as ``BUCKET/STREAM``, or ``STREAM`` for one outside any bucket; it may be written
    like that, or as the path of a URL."""
    name = written.removeprefix(_V1) if written.startswith(_V1) else written.removeprefix("/")
    try:
        parse_name(name)
    except BadName as error:
        raise BadOption(
            f"option {option} has '{written}', which names no stream: {error}"
        ) from None
    bucket, _, below = name.partition("/")
    return below if bucket == DEFAULT_BUCKET and below and "/" not in below else name


def stream_names(options: Options, option: str) -> list[str]:
    """An option that lists streams as a JSON array of names."""
    value = text(options, option) or ""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(it, str) for it in found):
        raise BadOption(
            f"option {option} is '{value}'; "
            'it must be a JSON array of names such as ["agents/a", "agents/b"]'
        )
    names = [stream_name(name, option) for name in found]
    if len(set(names)) < len(names):
        raise BadOption(f"option {option} names a stream twice")
    return names
