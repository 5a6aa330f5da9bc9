"""What a content type means to the server: media types, and JSON mode (protocol section 7).

A JSON message is stored as the bytes that were sent, followed by a comma. A read of any run of
messages is then one slice of stored bytes between brackets, whatever the number of messages, and a
number too big for a double comes back digit for digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

# What decoding may raise, whatever the bytes. A field that a later version added is skipped,
# however deeply it is nested, so the interpreter's stack is the limit.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

DEFAULT_CONTENT_TYPE = "application/octet-stream"
JSON = "application/json"
JSON_SEPARATOR = b","

_JSON_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_JSON_VALUE = msgspec.json.Decoder(msgspec.Raw)
_WHITE_SPACE = b" \t\r\n"
_CONTENT_TYPE = re.compile(
    r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+[ \t]*(;[\x20-\x7e]*)?"
)
MAX_CONTENT_TYPE_BYTES = 256
# What can stand between two messages of an array.
_BETWEEN = re.compile(rb"[ \t\r\n,]*")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

# Per body: the machine goes through the lengths of all messages at once.
MAX_MESSAGES = 1_000_000
# How much is cut into messages at once: tens of milliseconds if they are as short as possible.
SMALL_BYTES = 64 * 1024
# How far ahead to look for a comma between two messages at first; each further try doubles it.
_FURTHER_BYTES = 1024


class InvalidJson(ValueError):
    """A body is not the JSON that it claims to be."""


class TooManyMessages(ValueError):
    """An array has more than `MAX_MESSAGES`."""


class Records(NamedTuple):
    """A body cut into the records that are stored: their bytes end to end, and their lengths."""

    data: bytes
    lengths: list[int]


NO_RECORDS = Records(b"", [])


@lru_cache(maxsize=4096)
def is_content_type(text: str) -> bool:
    """Whether a Content-Type header's value is a media type (RFC 9110 section 8.3.1)."""
    return len(text) <= MAX_CONTENT_TYPE_BYTES and _CONTENT_TYPE.fullmatch(text) is not None


@lru_cache(maxsize=4096)
def media_type(content_type: str) -> str:
    """The part of a content type that is compared: lower case, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def same_media_type(one: str, other: str) -> bool:
    """Whether two content types are equal as far as the protocol compares them."""
    return one == other or media_type(one) == media_type(other)


@lru_cache(maxsize=4096)
def is_json(content_type: str) -> bool:
    """Whether streams of this type keep JSON messages apart (protocol section 7.1)."""
    return media_type(content_type) == JSON


@lru_cache(maxsize=4096)
def is_text(content_type: str) -> bool:
    """Whether SSE may carry the type as text; all others travel in base64 (section 5.8)."""
    kind = media_type(content_type)
    return kind == JSON or kind.startswith("text/")


def split_json(body: bytes) -> Records:
    """Cut a JSON body into messages, flattening one level of array (protocol section 7.1).

    An empty array gives no records; the caller decides whether that is allowed.
    Raises `InvalidJson`, `TooManyMessages`.
    """
    if body.lstrip(_WHITE_SPACE)[:1] != b"[":
        return _stored([json_value(body)])
    if len(body) <= SMALL_BYTES:
        return _stored(json_elements(body))
    parts: list[bytes] = []
    lengths: list[int] = []
    for messages in _runs(body):
        part = _stored(messages)
        parts.append(part.data)
        lengths += part.lengths
        if len(lengths) > MAX_MESSAGES:
            raise TooManyMessages
    return Records(b"".join(parts), lengths)


def _stored(messages: list[bytes]) -> Records:
    if not messages:
        return NO_RECORDS
    return Records(
        JSON_SEPARATOR.join(messages) + JSON_SEPARATOR,
        [len(message) + len(JSON_SEPARATOR) for message in messages],
    )


def _runs(body: bytes) -> Iterator[list[bytes]]:
    """The messages of a large array, a run of them at a time: the scanner lets no other thread
    run, and millions of messages at once take seconds and gigabytes.

    If the array's beginning up to a comma is an array, that comma lies between two messages.
    Otherwise the comma was inside a message, and a later one is tried. Raises `InvalidJson`.
    """
    start = at = body.index(b"[") + 1
    further = _FURTHER_BYTES
    while at:
        comma = body.find(JSON_SEPARATOR, at + SMALL_BYTES + further)
        is_last = comma < 0
        run = b"[" + body[at:] if is_last else b"[%b]" % body[at:comma]
        try:
            messages = json_elements(run)
            if not messages and not (is_last and at == start):
                raise InvalidJson("a message is missing")
        except InvalidJson as error:
            if is_last:
                raise InvalidJson(f"{error}, counted from byte {at - 1}") from None
            further *= 2
        else:
            yield messages
            at, further = comma + 1, _FURTHER_BYTES


def are_json_messages(data: bytes, lengths: list[int]) -> bool:
    """Whether records, end to end, are JSON messages as `split_json` stores them.

    Their sizes are positive and add up to the size of the data.
    """
    place = at = 0
    while place < len(lengths):
        first, start = place, at
        while place < len(lengths) and at - start < SMALL_BYTES:
            at += lengths[place]
            place += 1
        if data[at - 1 : at] != JSON_SEPARATOR:
            return False
        try:
            messages = json_elements(b"[%b]" % data[start : at - 1])
        except InvalidJson:
            return False
        if [len(message) + len(JSON_SEPARATOR) for message in messages] != lengths[first:place]:
            return False
    return True


def json_message(body: bytes) -> bytes:
    """One JSON message in its stored form; an array counts as one. Raises `InvalidJson`."""
    return json_value(body) + JSON_SEPARATOR


def json_value(body: bytes) -> bytes:
    """The bytes of one JSON value, without surrounding white space. Raises `InvalidJson`."""
    try:
        return bytes(_scan(body, _JSON_VALUE))
    except InvalidJson:
        if _SURROGATE.search(body) is None:
            raise
    repaired = _without_surrogates(body)
    return _as_sent(body, 0, [_scan(repaired, _JSON_VALUE)])[0]


def json_elements(array: bytes) -> list[bytes]:
    """The elements of a JSON array as they were sent. Raises `InvalidJson`."""
    try:
        return [bytes(raw) for raw in _scan(array, _JSON_LIST)]
    except InvalidJson:
        if _SURROGATE.search(array) is None:
            raise
    repaired = _without_surrogates(array)
    return _as_sent(array, array.find(b"[") + 1, _scan(repaired, _JSON_LIST))


def _without_surrogates(body: bytes) -> bytes:
    """The body with other escapes of the same length in the place of surrogates, paired or lone.

    Lone surrogates are JSON (RFC 8259 section 8.2), and `JSON.stringify` makes one of half an
    emoji, but the scanner refuses them. Each replacement is one pass, however many there are: an
    expression that finds the lone ones took seconds for a body of nothing else.
    """
    # Escaped backslashes first: after that each backslash begins an escape. Outside of strings
    # neither is JSON.
    bare = body.replace(rb"\\", b"xx")
    return bare.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0")


def _as_sent(body: bytes, at: int, repaired: list[msgspec.Raw]) -> list[bytes]:
    """The values of a body from byte `at` on, in place of those of its repaired copy."""
    values: list[bytes] = []
    for raw in repaired:
        match = _BETWEEN.match(body, at)
        assert match is not None
        start, at = match.end(), match.end() + len(raw)
        values.append(body[start:at])
    return values


def _scan(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        if not body.isascii():
            body.decode()  # the JSON scanner does not check the UTF-8 of strings
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise InvalidJson(f"not UTF-8 at byte {error.start}") from None
    except msgspec.DecodeError as error:
        raise InvalidJson(str(error)) from None
    except RecursionError:
        raise InvalidJson("nested too deeply") from None


def split_body(content_type: str, body: bytes) -> Records:
    """Cut a body into records by its content type. Raises `InvalidJson`."""
    if not body:
        return NO_RECORDS
    if is_json(content_type):
        return split_json(body)
    return Records(body, [len(body)])
