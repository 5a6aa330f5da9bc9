"""The reference server, from npm, and streamd answer the packages' requests alike.

`requests.mjs` sends every kind of request that the packages make, through a proxy that records it
and its answer. docs/compatibility.md gives the reason of each difference that is allowed here.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from tests.official_clients.test_npm_client import DEADLINE_S, HERE, running
from tests.support.recording_proxy import Exchange, RecordingProxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

# How a message is framed, and what the connection is for.
FRAMING = {"connection", "content-length", "date", "keep-alive", "transfer-encoding"}
# Headers of streamd in answers to which the reference server gives none of that name.
ADDED = {"cache-control", "content-security-policy", "etag", "stream-next-offset", "vary"}
# Both allow pages to read, in other words.
OTHER_WORDS = re.compile("access-control-.*")

CHANGING = [
    (re.compile(r"\d{16}_\d{16}"), "OFFSET"),
    (re.compile(r"cursor=\d+"), "cursor=CURSOR"),
    (re.compile(r"http://127\.0\.0\.1:\d+/"), "http://SERVER/"),
    (re.compile(r'"timestamp":\d+'), '"timestamp":TIME'),
    (re.compile(r',"offset":"OFFSET"'), ""),  # in State Protocol messages, see decision 010
]
OPAQUE = {"etag", "stream-cursor"}
BY_CHANCE = {"producer-expected-seq", "producer-received-seq", "producer-seq"}


def steady(text: str) -> str:
    for changing, name in CHANGING:
        text = changing.sub(name, text)
    return text


class Answer:
    """What an answer says, without what differs from one run to the next."""

    def __init__(self, exchange: Exchange, opaque: set[str] = OPAQUE) -> None:
        self.status = exchange.status
        self.headers = {
            name: "OPAQUE" if name in opaque else steady(value)
            for name, value in exchange.answer_headers.items()
            if name not in FRAMING and not OTHER_WORDS.fullmatch(name)
        }
        self.controls: set[str] = set()
        self.content: object = None
        if self.status >= 400:
            del self.headers["content-type"]  # The error is plain text there, JSON here.
        elif self.headers.get("content-type") == "text/event-stream":
            self._hear(exchange.answer.decode())
        elif exchange.status:
            self.content = steady(exchange.answer.decode(errors="surrogateescape"))

    def _hear(self, events: str) -> None:
        """The same appends may come in fewer events."""
        data: dict[str, list[str]] = defaultdict(list)
        for event in events.split("\n\n")[:-1]:
            kind, *lines = event.removeprefix("event: ").split("\n")
            data[kind].append("\n".join(line.removeprefix("data:") for line in lines))
        self.controls = {key for control in data["control"] for key in json.loads(control)}
        if "stream-sse-data-encoding" in self.headers:
            self.content = b"".join(base64.b64decode(piece) for piece in data["data"])
        else:
            pieces = [json.loads(steady(piece)) for piece in data["data"]]
            self.content = [message for piece in pieces for message in piece]

    def lacks(self, other: Answer) -> dict[str, tuple[object, object]]:
        """What the other says and this one does not, except for what is allowed to differ."""
        names = self.headers.keys() | other.headers.keys()
        pairs = {name: (self.headers.get(name), other.headers.get(name)) for name in names}
        found: dict[str, tuple[object, object]] = {
            name: (ours, theirs)
            for name, (ours, theirs) in pairs.items()
            if ours != theirs and not (theirs is None and name in ADDED)
        }
        if other.controls - self.controls:
            found["controls"] = self.controls, other.controls
        return found


Answers = dict[tuple[Any, ...], list[Answer]]


def answers(port: int) -> tuple[list[str], Answers, Answers]:
    """What the calls came to, and the answers to the same request in order: to the requests that
    come one after the other, and to those that come as it happens."""
    with RecordingProxy(port) as proxy:
        done = run(
            ["node", "requests.mjs", proxy.url],
            cwd=HERE,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert (done.returncode, done.stderr) == (0, "")
    ordered: Answers = defaultdict(list)
    unordered: Answers = defaultdict(list)
    for exchange in proxy.exchanges:
        wanted = exchange.method, steady(exchange.target)
        sent = {name: value for name, value in exchange.headers.items() if name != "host"}
        if exchange.target.startswith("/v1/stream/requests"):
            ordered[(*wanted, steady(str(sent)))].append(Answer(exchange))
        elif exchange.status:
            answer = Answer(exchange, OPAQUE | BY_CHANCE)
            unordered[(*wanted, exchange.status)].append(answer)
    return done.stdout.splitlines(), ordered, unordered


def test_the_packages_get_the_same_answers_as_from_the_reference_server(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        running("reference.mjs") as reference,
        ThreadPoolExecutor() as both,
    ):
        here, there = both.map(answers, (server.port, int(reference.says())))
    came_to, ours, ours_unordered = here
    reference_came_to, theirs, theirs_unordered = there
    assert came_to == reference_came_to
    assert len(came_to) > 70
    assert ours.keys() == theirs.keys()
    for request, expected in theirs.items():
        found = ours[request]
        assert [a.status for a in found] == [a.status for a in expected], request
        assert [a.content for a in found] == [a.content for a in expected], request
        lacking = [a.lacks(b) for a, b in zip(found, expected, strict=True)]
        assert not any(lacking), (request, lacking)
    shared = ours_unordered.keys() & theirs_unordered.keys()
    assert {method for method, *_ in shared} >= {"GET", "HEAD", "POST", "PUT"}
    for request in shared:
        for other in theirs_unordered[request]:
            lacking = [answer.lacks(other) for answer in ours_unordered[request]]
            assert {} in lacking, (request, lacking)
