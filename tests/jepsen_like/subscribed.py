"""A stream with a subscription of its own, on a cluster whose leader is killed."""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import httpx

from tests.jepsen_like.cluster_processes import ClusterProcesses, wait_until
from tests.jepsen_like.held_webhooks import Delivery, HeldWebhooks

_NUMBERS = count()


class Missed(Exception):
    """The cluster did not come to the step: a retry, or an election, was there first."""


class Wake(NamedTuple):
    """What its holder knows of a wake."""

    action: str
    wake_id: str
    generation: int
    token: str
    write_token: str
    acks: list[dict[str, str]]

    @classmethod
    def of(cls, action: str, body: dict[str, Any], token: str) -> Wake:
        acks = [{"stream": one["path"], "offset": one["tail_offset"]} for one in body["streams"]]
        known = body["wake_id"], body["generation"], token, body["write_token"]
        return cls(action, *known, acks)

    @classmethod
    def delivered(cls, delivery: Delivery) -> Wake:
        return cls.of("callback", delivery.body, delivery.body["callback_token"])


class Subscribed:
    """A fenced stream with a subscription of its own, on a cluster whose leader dies."""

    def __init__(self, cluster: ClusterProcesses, receiver: HeldWebhooks, kind: str) -> None:
        self.cluster, self.receiver = cluster, receiver
        self.id = f"{kind}-{next(_NUMBERS)}"
        self.stream, self.wakes = f"{self.id}/s", f"{self.id}-wakes/w"
        self.killed_at = 0.0
        self.written = b""
        self._kind = kind

    def subscribe(self, lease_ms: int, *, has_wake_stream: bool = True) -> None:
        fenced = {"Content-Type": "text/plain", "Write-Fence": "true"}
        assert self.ask("PUT", f"/v1/stream/{self.stream}", headers=fenced).status_code == 201
        config: dict[str, Any] = {"streams": [self.stream], "lease_ttl_ms": lease_ms}
        if self._kind == "webhook":
            url = f"http://127.0.0.1:{self.receiver.port}/"
            config |= {"type": "webhook", "webhook": {"url": url}}
        else:
            config |= {"type": "pull-wake", "wake_stream": self.wakes}
            if has_wake_stream:
                self.create_wake_stream()
        assert self.about("PUT", json=config).status_code in (200, 201)

    def create_wake_stream(self) -> None:
        assert self.ask("PUT", f"/v1/stream/{self.wakes}", json=[]).status_code in (200, 201)

    # -- requests -----------------------------------------------------------------------------

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        """The answer of a node that knows a leader."""
        found: list[httpx.Response] = []

        def is_answered() -> bool:
            for node in self.cluster.alive:
                try:
                    answer = httpx.request(method, node.url + path, timeout=5, **given)
                except httpx.TransportError:
                    continue
                if answer.status_code != 503:
                    found.append(answer)
                    return True
            return False

        wait_until(is_answered, f"an answer to {method} {path}")
        return found[0]

    def about(self, method: str, action: str = "", **given: Any) -> httpx.Response:
        return self.ask(method, self.path(action), **given)

    def path(self, action: str = "") -> str:
        return f"/v1/stream/__ds/subscriptions/{self.id}" + (f"/{action}" if action else "")

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.about("GET").json()
        return found

    def append(self) -> None:
        """An open write of the application."""
        data = b"<%d>" % next(_NUMBERS)
        text = {"Content-Type": "text/plain"}
        answer = self.ask("POST", f"/v1/stream/{self.stream}", headers=text, content=data)
        assert answer.status_code == 204, answer.text
        self.written += data

    def write(self, wake: Wake, data: bytes) -> httpx.Response:
        """A write of the holder of a wake."""
        headers = {
            "Content-Type": "text/plain",
            "Write-Token": wake.write_token,
            "Producer-Id": self.id,
            "Producer-Epoch": str(wake.generation),
            "Producer-Seq": "0",
        }
        return self.ask("POST", f"/v1/stream/{self.stream}", headers=headers, content=data)

    def request_to_end(self, wake: Wake) -> dict[str, Any]:
        """What acknowledges a wake's records, and ends it."""
        named = {"wake_id": wake.wake_id, "generation": wake.generation}
        return {
            "headers": {"Authorization": f"Bearer {wake.token}"},
            "json": {**named, "acks": wake.acks, "done": True},
        }

    def end(self, wake: Wake) -> httpx.Response:
        return self.about("POST", wake.action, **self.request_to_end(wake))

    def claim(self, worker: str = "worker") -> Wake:
        """Claim once that is possible."""
        found: list[dict[str, Any]] = []

        def is_claimed() -> bool:
            answer = self.about("POST", "claim", json={"worker": worker})
            if answer.status_code == 200:
                found.append(answer.json())
            return bool(found)

        wait_until(is_claimed, f"{worker} claims {self.id}")
        return Wake.of("ack", found[0], found[0]["token"])

    def events(self) -> list[int]:
        """The generations in the wake stream."""
        answer = self.ask("GET", f"/v1/stream/{self.wakes}")
        return [event["generation"] for event in answer.json()] if answer.is_success else []

    def next(self) -> Delivery:
        return self.receiver.next(self.id)

    # -- judgement ----------------------------------------------------------------------------

    def is_acknowledged(self) -> bool:
        state = self.state()
        [stream] = state["streams"]
        is_all: bool = stream["acked_offset"] == stream["tail_offset"]
        assert is_all or stream["has_pending"], "a record is neither acknowledged nor pending"
        return is_all and state["wake"] is None

    def assert_ended(self, wake: Wake) -> None:
        """Nothing of a wake takes effect any longer."""
        before = self.state()["streams"]
        for answer in (self.end(wake), self.write(wake, b"stale")):
            told = answer.status_code, answer.json()["error"]["code"]
            assert told in ((409, "FENCED"), (401, "TOKEN_EXPIRED"), (401, "UNAUTHENTICATED")), told
        after = self.state()["streams"]
        offsets = [[one["acked_offset"], one["tail_offset"]] for one in (before[0], after[0])]
        assert offsets[0] == offsets[1]

    def finish(self) -> None:
        """The worker does what there is to do, and everything is as it should be."""

        def is_finished() -> bool:
            if self.is_acknowledged():
                return True
            if self._kind == "webhook":
                self.next().answer(done=True)
            else:
                self.end(self.claim("the last"))
            return self.is_acknowledged()

        wait_until(is_finished, f"{self.id} is acknowledged")
        stream = self.ask("GET", f"/v1/stream/{self.stream}")
        assert stream.content == self.written


# -- webhooks --------------------------------------------------------------------------------------
