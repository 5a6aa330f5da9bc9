"""A server for tests of the formats, and a writer of their streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

JSON = "application/json"
BYTES = "application/octet-stream"


class Writer:
    """Makes streams and appends to them, as any client would."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=30)

    def close(self) -> None:
        self._http.close()

    def create(self, name: str, content_type: str = JSON) -> None:
        made = self._http.put(f"/v1/stream/{name}", headers={"Content-Type": content_type})
        assert made.is_success, made.text

    def append(self, name: str, *messages: Any) -> str:
        """Append JSON messages. Returns the offset after them."""
        return self.send(name, json.dumps(messages).encode(), JSON)

    def send(self, name: str, body: bytes, content_type: str) -> str:
        headers = {"Content-Type": content_type}
        sent = self._http.post(f"/v1/stream/{name}", content=body, headers=headers)
        assert sent.is_success, sent.text
        offset: str = sent.headers["stream-next-offset"]
        return offset

    def delete(self, name: str) -> None:
        assert self._http.delete(f"/v1/stream/{name}").is_success

    def publish(self, name: str, offset: str, content: bytes, content_type: str = JSON) -> None:
        """Publish a snapshot, which trims the stream."""
        put = self._http.put(
            f"/{name}/snapshot/{offset}", content=content, headers={"Content-Type": content_type}
        )
        assert put.is_success, put.text

    def filled(self, name: str, messages: Sequence[Any], at_once: int = 500) -> list[str]:
        """Make a stream of JSON messages; returns the offsets after each request."""
        self.create(name)
        return [
            self.append(name, *messages[start : start + at_once])
            for start in range(0, len(messages), at_once)
        ]
