"""Subscriptions and their workers, beside the streams of a `buckets.Author`: commands as the
server's handlers propose them. The leader itself adds keys, attempts deliveries and ends leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamd.streams.commands import Append, Command, Create, Outcome, Result
from streamd.streams.model import ProducerStamp, Settings
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    ClaimWake,
    DeleteSubscription,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    UnlinkStream,
    WakeSubscription,
)
from streamd.streams.subscriptions.model import (
    Ack,
    FenceStamp,
    Subscription,
    SubscriptionConfig,
    WakeStamp,
)
from streamd.streams.subscriptions.paths import key_of
from tests.http.serving import until

if TYPE_CHECKING:
    from tests.spark.buckets import Author

JSON = {"Content-Type": "application/json"}
# Nothing of this machine may be called, so each attempt fails.
_HOOK = "https://127.0.0.1:1/hook"


class Subscriber:
    """Has subscriptions on one server."""

    def __init__(self, author: Author) -> None:
        self._author = author

    async def make(self) -> None:
        """Some that have work at once, one whose wake stream is missing, and one to be deleted."""
        await self._author.node.keyring.ensure()
        await self._author.create("/v1/stream/wakes", JSON)
        await self._put("indexer", ["agents/ticks"], wake="wakes", pattern="agents/*")
        await self._put("mailer", ["agents/orders", "agents/none-yet"], url=_HOOK)
        await self._put("watcher", ["wakes"], wake="agents/missing", pattern="**")
        fenced = Create(key_of("agents/session"), Settings("text/plain", write_fence=True))
        await self._do(fenced, Result.CREATED)
        await self._put("doomed", [], url=_HOOK, pattern="*/chat")
        await self._do(
            PutSubscription("doomed", self._config(pattern="x")), Result.SUBSCRIPTION_EXISTS
        )
        await self._author.append("/agents/ticks", b"tick-tock\n")
        await self._author.append("/agents/chat", b"all of them\n")
        await self._author.messages("/agents/orders", 1)

    async def work(self) -> None:
        """A claim that is renewed, attempts that fail and arrive, and further streams."""
        await self._do(ClaimWake("indexer", "worker-1"))
        await self._do(ClaimWake("indexer", "worker-2"), Result.ALREADY_CLAIMED)
        await self._acknowledge("indexer", "agents/ticks")
        await self._write_fenced(b"the worker's own\n", 0)
        await self._write_fenced(b"nobody's\n", 1, Result.WRITE_FENCED, wake_id="w_" + "0" * 32)
        await until(lambda: self._find("mailer").failures > 0)
        await self._do(LinkStreams("mailer", [key_of("agents/chat"), key_of("agents/late")]))
        await self._do(UnlinkStream("mailer", key_of("agents/none-yet")))
        await self._do(WakeSubscription("doomed"))
        await self._do(DeleteSubscription("doomed"))
        await self._author.append("/agents/chat", b"after a deletion\n")

    async def lapse(self) -> None:
        """The clock has gone on: leases have lapsed, and retries are due."""
        numbers = [*self._author.node.group.state.subscriptions.records]
        await self._do(EndLeases(numbers))
        await self._author.create("/agents/missing", JSON)
        await self._do(EndLeases(numbers))
        await self._do(ClaimWake("watcher", "worker-3"))
        await self._acknowledge("watcher", "wakes", done=True)
        await until(lambda: self._find("mailer").failures > 1)
        acks = [self._tail("agents/chat"), self._tail("agents/orders")]
        await self._do(AcknowledgeWake("mailer", self._stamp("mailer"), acks, True))
        await self._write_fenced(b"a zombie's\n", 1, Result.WRITE_FENCED)
        await self._do(ClaimWake("indexer", "worker-2"))
        await self._write_fenced(b"the next worker's\n", 0)
        await self._author.ask("DELETE", "/agents/ticks")

    async def leave(self) -> None:
        """What only the log has."""
        await self._author.append("/agents/chat", b"who is awake?\n")
        await self._do(ReleaseWake("indexer", self._stamp("indexer")), Result.FENCED)
        await self._do(ClaimWake("indexer", "worker-1"))
        await self._do(ReleaseWake("indexer", self._stamp("indexer")))
        await self._put("doomed", [], url=_HOOK, pattern="agents/*")

    # --------------------------------------------------------------------------------------------

    def _config(self, wake: str = "", url: str = "", pattern: str = "") -> SubscriptionConfig:
        kind, key = ("pull-wake", key_of(wake)) if wake else ("webhook", b"")
        return SubscriptionConfig(kind, pattern, url, key, 60_000, "a test")  # type: ignore[arg-type]

    async def _put(self, name: str, paths: list[str], **config: str) -> None:
        keys = [key_of(path) for path in paths]
        await self._do(PutSubscription(name, self._config(**config), keys), Result.CREATED)

    async def _do(self, command: Command, expected: Result = Result.DONE) -> Outcome:
        outcome = await self._author.node.group.writes.propose(command)
        if isinstance(command, DeleteSubscription):
            expected = Result.DELETED
        assert outcome.result is expected, (command, outcome)
        return outcome

    def _find(self, name: str) -> Subscription:
        found = self._author.node.group.state.subscriptions.by_id(name)
        assert found is not None
        return found

    def _tail(self, path: str) -> Ack:
        stream = self._author.node.group.state.streams.get(key_of(path))
        assert stream is not None
        return Ack(key_of(path), stream.records, stream.size)

    async def _acknowledge(self, name: str, path: str, *, done: bool = False) -> None:
        await self._do(AcknowledgeWake(name, self._stamp(name), [self._tail(path)], done))

    async def _write_fenced(
        self, data: bytes, seq: int, expected: Result = Result.APPENDED, wake_id: str = ""
    ) -> None:
        """Write to the fenced stream under the claim of the indexer's worker."""
        one, key = self._find("indexer"), key_of("agents/session")
        wake_id = wake_id or ("" if one.wake is None else one.wake.wake_id) or "w_" + "1" * 32
        stamp = FenceStamp(one.number, one.generation, wake_id, one.holder, 2**60)
        producer = ProducerStamp("agent", one.generation, seq, True)
        size = [len(data)]
        command = Append(key, "text/plain", data, size, False, None, producer, None, stamp)
        await self._do(command, expected)

    def _stamp(self, name: str) -> WakeStamp:
        one = self._find(name)
        assert one.wake is not None
        return WakeStamp(one.number, one.generation, one.wake.wake_id)
