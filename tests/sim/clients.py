"""Clients: they create, append, read, follow, close and delete through any node, and record the
answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import trio

from streamd.http.protocol.messages import Request, Response
from tests.jepsen_like.history import CLOSED, NOT_FOUND, STALE_EPOCH, Kind, Pending, Recorder, Stamp
from tests.sim.host import ConnectionLost, Host, NotThere

TEXT = b"text/plain"
_START = "-1"


class Unknown(Exception):
    """The request may have had its effect, or may yet."""


class Unavailable(Exception):
    """The request had no effect and never will."""


@dataclass
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @classmethod
    def of(cls, response: Response) -> Answer:
        lines = response.head.split(b"\r\n")[:-1]
        headers = dict(line.split(b": ", 1) for line in lines)
        body = response.body
        data = bytes(body) if isinstance(body, bytes | memoryview) else b"".join(body)
        return cls(response.status, {k.lower(): v for k, v in headers.items()}, data)

    @property
    def next_offset(self) -> str:
        return self.headers.get(b"stream-next-offset", b"").decode()

    @property
    def closed(self) -> bool:
        return b"stream-closed" in self.headers

    @property
    def up_to_date(self) -> bool:
        return b"stream-up-to-date" in self.headers

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"]) if self.body else ""


class _Silence:
    """The channel of a client that stays until its answer."""

    async def wait_disconnected(self) -> None:
        await trio.sleep_forever()


@dataclass
class Path:
    """A stream's path and the lives it has had. Once it is unknown whether it was deleted, it is
    abandoned: it is not created again."""

    name: str
    incarnation: int = 0
    exists: bool = False
    given_up: bool = False
    # Offsets seen in this life.
    offsets: list[str] = field(default_factory=lambda: [_START])

    @property
    def url(self) -> bytes:
        return b"/v1/stream/sim/" + self.name.encode()


class Workload:
    """All clients of a run, and the history of what they did."""

    def __init__(
        self,
        random: Random,
        hosts: Callable[[], list[Host]],
        recorder: Recorder,
        counted: Counter[str],
    ) -> None:
        self.random = random
        self.hosts = hosts
        self.recorder = recorder
        self.counted = counted
        self.may_delete = random.random() < 0.4
        self.may_close = random.random() < 0.4
        self.paths = [Path(f"s{number}") for number in range(random.choice((1, 2, 3)))]
        self.running = True
        # The latest epoch of each producer.
        self.epochs: Counter[str] = Counter()

    async def send(
        self,
        host: Host,
        method: str,
        path: bytes,
        timeout_s: float,
        *,
        query: bytes = b"",
        headers: dict[bytes, bytes] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """Raises `Unavailable`, `Unknown`."""
        channel = _Silence()
        request = Request(method, path, query, headers or {}, body, channel)  # type: ignore[arg-type]
        led = host.leads
        try:
            with trio.move_on_after(timeout_s):
                answer = Answer.of(await host.request(request))
                if answer.status == 503 and answer.code == "OUTCOME_UNKNOWN":
                    self.counted["outcomes unknown"] += 1
                    raise Unknown(answer.body.decode())
                if answer.status == 503:
                    self.counted["refusals for want of a leader"] += 1
                    raise Unavailable(answer.body.decode())
                if answer.status >= 500:
                    raise Unknown(answer.body.decode())
                if method in ("GET", "HEAD"):
                    self.counted["leader reads" if led else "follower reads"] += 1
                return answer
        except NotThere as error:
            raise Unavailable("nobody listens") from error
        except ConnectionLost as error:
            raise Unknown("the connection broke") from error
        raise Unknown("no answer in time")

    def any_host(self) -> Host:
        return self.random.choice(self.hosts())

    async def create_all(self) -> None:
        """The first life of each path."""
        for number, path in enumerate(self.paths):
            attempt = 0
            while not path.exists:
                attempt += 1
                client = Client(self, f"creator{number}.{attempt}")
                await client.create(path)
                await trio.sleep(0.2)


class Client:
    """One client, one thing at a time. After a write of unknown outcome it takes a new name."""

    def __init__(self, workload: Workload, name: str) -> None:
        self.workload = workload
        self.random = workload.random
        self._name = name
        self._lives = 0
        self._payloads = 0
        self._producer: dict[tuple[str, int], Stamp] = {}
        self._positions: dict[tuple[str, int], str] = {}

    @property
    def name(self) -> str:
        return f"{self._name}.{self._lives}"

    async def run(self, pause_s: float) -> None:
        """Carry out one operation after the other until the workload ends."""
        is_producer = self.random.random() < 0.5
        follows = self.random.random() < 0.3
        while self.workload.running:
            await trio.sleep(self.random.expovariate(1 / pause_s))
            path = self.random.choice(self.workload.paths)
            what = self.random.random()
            if self.workload.may_delete and what > 0.99:
                await self.delete(path)
            elif self.workload.may_close and what > 0.985:
                await self.append(path, close=True, data=self.random.random() < 0.5)
            elif what > 0.6:
                await self.read(path)
            elif what > 0.45:
                await self.head(path)
            elif follows:
                await self.follow(path)
            elif is_producer:
                await self.produce(path)
            else:
                await self.append(path)

    # -- writes -------------------------------------------------------------------------------

    async def create(self, path: Path) -> None:
        pending = self._invoke("create", path)
        headers = {b"content-type": TEXT}
        answer = await self._exchange(pending, "PUT", path, headers=headers)
        if answer is None:
            return
        if answer.status in (200, 201):
            path.exists = True
            pending.ok(next_offset=answer.next_offset, duplicate=answer.status == 200)
        else:
            self._refused(pending, answer)

    async def append(self, path: Path, *, close: bool = False, data: bool = True) -> None:
        payload = self._payload() if data else b""
        kind: Kind = "append" if data else "close"
        pending = self._invoke(kind, path, payload=payload, closes=close and data)
        headers = {b"content-type": TEXT} if data else {}
        if close:
            headers[b"stream-closed"] = b"true"
        answer = await self._exchange(pending, "POST", path, headers=headers, body=payload)
        if answer is not None:
            self._appended(path, pending, answer)

    async def produce(self, path: Path) -> None:
        """Append as an idempotent producer, and retry until the outcome is known."""
        life = path.name, path.incarnation
        last = self._producer.get(life)
        if last is None or self.random.random() < 0.05:
            stamp = self._new_epoch()
        else:
            stamp = Stamp(last.producer, last.epoch, last.seq + 1)
        payload = self._payload()
        headers = {
            b"content-type": TEXT,
            b"producer-id": stamp.producer.encode(),
            b"producer-epoch": b"%d" % stamp.epoch,
            b"producer-seq": b"%d" % stamp.seq,
        }
        # A retry that meets the path's next life is a new append, rightly.
        for attempt in range(1 if self.workload.may_delete else 8):
            self.workload.counted["producers' retries"] += attempt > 0
            pending = self._invoke(
                "append", path, payload=payload, stamp=stamp, incarnation=life[1]
            )
            answer = await self._exchange(pending, "POST", path, headers=headers, body=payload)
            if answer is not None:
                self._appended(path, pending, answer)
                if answer.status in (200, 204):
                    self._producer[life] = stamp
                else:
                    self._producer.pop(life, None)
                return
            if not self.workload.running:
                break
            await trio.sleep(self.random.uniform(0, 1))
        self._producer.pop(life, None)

    def _new_epoch(self) -> Stamp:
        """Begin an epoch, sometimes of another client's producer, which is a zombie from then
        on."""
        epochs = self.workload.epochs
        may_take_over = bool(epochs) and not self.workload.may_delete
        taken_over = may_take_over and self.random.random() < 0.2
        producer = self.random.choice(list(epochs)) if taken_over else self._name
        epochs[producer] += 1
        return Stamp(producer, epochs[producer], 0)

    def _appended(self, path: Path, pending: Pending, answer: Answer) -> None:
        if answer.status in (200, 204):
            is_retry = answer.status == 204 and pending.operation.stamp is not None
            self.workload.counted["retries recognised"] += is_retry
            pending.ok(next_offset=answer.next_offset, closed=answer.closed, duplicate=is_retry)
            self._saw(path, pending, answer.next_offset)
        else:
            self._refused(pending, answer)

    async def delete(self, path: Path) -> None:
        """Delete the stream and create it again, unless the outcome of the deletion is unknown."""
        if path.given_up or not path.exists:
            return
        path.given_up = True
        incarnation = path.incarnation
        pending = self._invoke("delete", path)
        answer = await self._exchange(pending, "DELETE", path)
        if answer is None:
            return
        if answer.status != 204:
            self._refused(pending, answer)
            return
        pending.ok()
        path.incarnation, path.exists, path.offsets = incarnation + 1, False, [_START]
        for attempt in range(20):
            # A client without an answer makes no further request, on any path.
            name = f"{self.name}/creator.{path.name}.{incarnation}.{attempt}"
            await Client(self.workload, name).create(path)
            if path.exists:
                path.given_up = False
                self.workload.counted["streams created again"] += 1
                return
            await trio.sleep(0.5)

    # -- reads --------------------------------------------------------------------------------

    async def head(self, path: Path) -> None:
        pending = self._invoke("head", path)
        answer = await self._exchange(pending, "HEAD", path)
        if answer is not None and answer.status == 200:
            pending.ok(next_offset=answer.next_offset, closed=answer.closed)
        elif answer is not None:
            self._refused(pending, answer)

    async def read(self, path: Path) -> None:
        await self._read("read", path, self.random.choice(path.offsets), b"")

    async def follow(self, path: Path) -> None:
        """Continue where this client was, waiting at the tail."""
        at = self._positions.get((path.name, path.incarnation), _START)
        live = b"&live=long-poll&timeout=1" if self.random.random() < 0.7 else b""
        await self._read("deliver", path, at, live)

    async def _read(self, kind: Kind, path: Path, offset: str, live: bytes) -> None:
        life = path.name, path.incarnation
        pending = self._invoke(kind, path, offset=offset)
        most = self.random.choice((1, 50, 100_000))
        query = b"offset=%b&max_bytes=%d%b" % (offset.encode(), most, live)
        answer = await self._exchange(pending, "GET", path, query=query)
        if answer is None:
            return
        if answer.status not in (200, 204):
            self._refused(pending, answer)
            return
        pending.ok(
            data=answer.body,
            next_offset=answer.next_offset,
            up_to_date=answer.up_to_date,
            closed=answer.closed,
        )
        self._saw(path, pending, answer.next_offset)
        if kind == "deliver":
            self._positions[life] = answer.next_offset

    # -- requests -----------------------------------------------------------------------------

    def _payload(self) -> bytes:
        self._payloads += 1
        filling = b"." * self.random.choice((0, 0, 20, 300))
        return b"<%b.%d%b>" % (self._name.encode(), self._payloads, filling)

    def _invoke(
        self,
        kind: Kind,
        path: Path,
        *,
        payload: bytes = b"",
        closes: bool = False,
        stamp: Stamp | None = None,
        offset: str = "",
        incarnation: int | None = None,
    ) -> Pending:
        return self.workload.recorder.invoke(
            self.name,
            kind,
            path.name,
            path.incarnation if incarnation is None else incarnation,
            payload=payload,
            closes=closes,
            stamp=stamp,
            offset=offset,
        )

    async def _exchange(
        self,
        pending: Pending,
        method: str,
        path: Path,
        *,
        query: bytes = b"",
        headers: dict[bytes, bytes] | None = None,
        body: bytes = b"",
    ) -> Answer | None:
        """The answer, or None once its absence is recorded."""
        host = self.workload.any_host()
        pending.operation.node = f"n{host.node_id}"
        timeout_s = self.random.choice((2.0, 5.0, 20.0))
        try:
            return await self.workload.send(
                host, method, path.url, timeout_s, query=query, headers=headers, body=body
            )
        except Unavailable as error:
            pending.fail(f"unavailable: {error}")
        except Unknown as error:
            pending.unknown(str(error))
            if method not in ("GET", "HEAD"):
                self._lives += 1
        return None

    def _refused(self, pending: Pending, answer: Answer) -> None:
        names = {
            "STREAM_CLOSED": CLOSED,
            "STREAM_NOT_FOUND": NOT_FOUND,
            "STALE_EPOCH": STALE_EPOCH,
        }
        code = answer.code or ("STREAM_NOT_FOUND" if answer.status == 404 else "")
        self.workload.counted[f"refused: {code}"] += 1
        pending.fail(names.get(code, code))

    def _saw(self, path: Path, pending: Pending, offset: str) -> None:
        if pending.operation.incarnation == path.incarnation and offset:
            path.offsets.append(offset)
            del path.offsets[:-8]
