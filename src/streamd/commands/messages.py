"""How the command line shows what a stream holds: one message, or one line of text, a line."""

from __future__ import annotations

import codecs
import json
from base64 import b64encode
from http import HTTPStatus
from typing import Any

from streamd.client.core.retrying import unexpected
from streamd.streams.content import InvalidJson, is_json, is_text, json_elements

# JSON strings contain no raw line breaks, so replacing those between tokens is safe.
LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def split_messages(array: bytes) -> list[bytes]:
    """The messages that a server answered with, each on one line, digit for digit.

    Raises `StreamdError` if the answer is not a JSON array.
    """
    try:
        return [element.translate(LINE_BREAKS) for element in json_elements(array)]
    except InvalidJson as error:
        raise unexpected(HTTPStatus.OK, f"a JSON stream is read as an array: {error}") from None


def plain(content_type: str, data: bytes) -> bytes:
    """A piece of a stream for standard output: JSON messages one a line, all else unchanged."""
    if not is_json(content_type):
        return data
    return b"".join(message + b"\n" for message in split_messages(data))


def json_line(content_type: str, data: bytes, next_offset: str) -> bytes:
    """A piece of a stream as one line of JSON, with the offset to continue from."""
    head = json.dumps({"next_offset": next_offset})[:-1].encode()
    if is_json(content_type):
        return head + b', "messages": [' + b", ".join(split_messages(data)) + b"]}\n"
    if is_text(content_type):
        try:
            return head + b', "text": ' + json.dumps(data.decode()).encode() + b"}\n"
        except UnicodeDecodeError:
            pass
    return head + b', "base64": "' + b64encode(data) + b'"}\n'


def json_object(fields: dict[str, Any]) -> bytes:
    """The fields as one line of JSON."""
    return json.dumps(fields).encode() + b"\n"


class JsonText:
    """A message of any size as one JSON object on one line, written while the message arrives."""

    def __init__(self, content_type: str) -> None:
        self._head = json.dumps({"content_type": content_type})[:-1].encode()
        self._rest = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        if is_json(content_type):
            self._head += b', "message": '
            self._empty = True
            self._encode, self._foot = self._as_json, b"}\n"
        elif is_text(content_type):
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self._head += b', "text": "'
            self._encode, self._foot = self._as_text, b'"}\n'
        else:
            self._head += b', "base64": "'
            self._encode, self._foot = self._as_base64, b'"}\n'

    def head(self) -> bytes:
        return self._head

    def more(self, data: bytes) -> bytes:
        return self._encode(data, False)

    def foot(self) -> bytes:
        return self._encode(b"", True) + self._foot

    def _as_json(self, data: bytes, last: bool) -> bytes:
        if last and self._empty:
            return b"null"  # No message is empty, but a snapshot may be.
        self._empty = self._empty and not data
        return data.translate(LINE_BREAKS)

    def _as_text(self, data: bytes, last: bool) -> bytes:
        assert self._decoder is not None
        return json.dumps(self._decoder.decode(data, last))[1:-1].encode()

    def _as_base64(self, data: bytes, last: bool) -> bytes:
        data = self._rest + data
        whole = len(data) if last else len(data) - len(data) % 3
        self._rest = data[whole:]
        return b64encode(data[:whole])


class LastLines:
    """Keeps the last lines (messages, in a JSON stream) of its input, up to a limit in bytes."""

    def __init__(self, count: int, max_bytes: int) -> None:
        self._count = count
        self._max_bytes = max_bytes
        self._kept = b""

    def add(self, data: bytes) -> None:
        """Take in more, and drop what is no longer among the last lines."""
        self._kept = self._last(self._kept + data)

    def lines(self) -> bytes:
        return self._kept

    def _last(self, data: bytes) -> bytes:
        if not self._count:
            return b""
        at = len(data) - 1 if data.endswith(b"\n") else len(data)
        for _ in range(self._count):
            at = data.rfind(b"\n", 0, at)
            if at < 0:
                return data[-self._max_bytes :]
        return data[at + 1 :][-self._max_bytes :]
