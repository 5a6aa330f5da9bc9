"""What clients of all nodes see when the leader is killed: each of them keeps going, and each
append must be there once."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_TIMEOUT_S = 30.0
_RECORD = re.compile(rb"<[^<>]*>")


@dataclass
class Appender:
    """A client of one node: appends one record after the other until told to stop."""

    port: int
    target: str
    content_type: str
    name: str
    acknowledged: list[tuple[float, bytes]] = field(default_factory=list)
    # The number of other answers, by their code, and of broken connections.
    others: Counter[str] = field(default_factory=Counter)
    running: bool = True

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Stop it after the request in progress."""
        self.running = False

    def _run(self) -> None:
        number = 0
        connection: http.client.HTTPConnection | None = None
        while self.running:
            number += 1
            record = f"<{self.name}.{number}>".encode()
            try:
                if connection is None:
                    connection = http.client.HTTPConnection(
                        "127.0.0.1", self.port, timeout=_TIMEOUT_S
                    )
                connection.request("POST", self.target, record, {"Content-Type": self.content_type})
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.others[type(error).__name__] += 1
                connection = None
                time.sleep(0.05)
                continue
            if response.status in (200, 204):
                self.acknowledged.append((time.monotonic(), record))
            else:
                self.others[str(json.loads(body)["error"]["code"])] += 1
        if connection is not None:
            connection.close()


def longest_gap_s(appenders: Sequence[Appender], since: float) -> float:
    """The longest time without an acknowledgement to any of them, from `since` on."""
    moments = sorted(at for one in appenders for at, _ in one.acknowledged if at > since)
    return max(
        (later - at for at, later in zip([since, *moments], moments, strict=False)),
        default=float("inf"),
    )


def records_at(port: int, target: str) -> Counter[bytes]:
    """All records of the stream, as a node has them, and how often each occurs."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    content, offset = b"", "-1"
    while True:
        connection.request("GET", f"{target}?offset={offset}")
        response = connection.getresponse()
        content += response.read()
        offset = response.headers["Stream-Next-Offset"]
        if "Stream-Up-To-Date" in response.headers:
            connection.close()
            return Counter(_RECORD.findall(content))
