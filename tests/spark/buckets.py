"""Buckets as clusters leave them in a real MinIO, and copies of them for tests to damage."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from streamd.auth.tokens import SECRET_BYTES, mint
from streamd.config.settings import AuthConfig, ColdConfig
from tests.backup.test_archive import a_round
from tests.http.serving import Serving, serving, until
from tests.spark.subscribed_authors import Subscriber
from tests.support.minio import MinioServer

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
BYTES = {"Content-Type": "application/octet-stream"}
MINUTE_MS = 60_000
# Authors make tokens, which nobody needs.
AUTH = AuthConfig(root_token=mint(1, bytes(SECRET_BYTES)))
OPERATOR = {"Authorization": f"Bearer {AUTH.root_token}"}


class Place(NamedTuple):
    """A prefix of a bucket in a MinIO."""

    minio: MinioServer
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """As the audit takes it."""
        return f"s3://{self.bucket}/{self.prefix}"

    def cold(self, **settings: object) -> ColdConfig:
        """A node's cold store here: small packs, nothing flushed or removed unless it is asked."""
        return ColdConfig(
            backend="s3",
            s3_bucket=self.bucket,
            s3_prefix=self.prefix,
            s3_endpoint=self.minio.endpoint,
            s3_access_key_id=self.minio.access_key_id,
            s3_secret_access_key=self.minio.secret_access_key,
            **{  # type: ignore[arg-type]
                "pack_bytes": 64 * 1024,
                "flush_after_ms": 10**9,
                "snapshot_interval_minutes": 10,
                "archive_retention_hours": 1000,
                "hot_keep_bytes": 1,
                "gc_interval_ms": 10**9,
                **settings,
            },
        )

    def objects(self) -> dict[str, bytes]:
        """All objects, by the names below the prefix."""
        client = self.minio.client()
        prefix = f"{self.prefix}/"
        found = {}
        for listed in client.list_objects(self.bucket, prefix, recursive=True):
            name = listed.object_name
            assert name is not None
            response = client.get_object(self.bucket, name)
            found[name.removeprefix(prefix)] = response.read()
            response.close()
            response.release_conn()
        return found

    def put(self, objects: Mapping[str, bytes]) -> None:
        client = self.minio.client()

        def put_one(name: str) -> None:
            content = io.BytesIO(objects[name])
            client.put_object(
                self.bucket, f"{self.prefix}/{name}", content, content.getbuffer().nbytes
            )

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(put_one, objects))


class Clean(NamedTuple):
    """The objects of one cluster that has stopped writing."""

    place: Place
    cluster_id: str
    objects: dict[str, bytes]

    @classmethod
    def at(cls, place: Place) -> Clean:
        objects = place.objects()
        [cluster_id] = {name.partition("/")[0] for name in objects}
        return cls(place, cluster_id, objects)


class Author:
    """Writes streams of every kind to one server, and has its cold store work."""

    def __init__(self, server: Serving, http: httpx.AsyncClient) -> None:
        self.server = server
        self.node = server.node
        self._http = http
        self._lines = 0

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        expect: tuple[int, ...] = (200, 201, 204),
    ) -> httpx.Response:
        answer = await self._http.request(method, path, content=body, headers=dict(headers or {}))
        assert answer.status_code in expect, (method, path, answer.status_code, answer.text)
        return answer

    async def create(
        self, path: str, kind: Mapping[str, str] = TEXT, body: bytes = b"", **headers: str
    ) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.ask("PUT", path, body, {**kind, **named})

    async def append(
        self,
        path: str,
        body: bytes,
        kind: Mapping[str, str] = TEXT,
        expect: tuple[int, ...] = (200, 204),
        **headers: str,
    ) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.ask("POST", path, body, {**kind, **named}, expect)
        return str(answer.headers.get("stream-next-offset", ""))

    async def lines(self, path: str, count: int, size: int = 700) -> list[str]:
        """Append so many records of about `size` bytes each. Returns the offsets after them."""
        found = []
        for _ in range(count):
            self._lines += 1
            line = b"%06d " % self._lines + b"abcdefghij" * (size * (self._lines % 5 + 3) // 50)
            found.append(await self.append(path, line + b"\n"))
        return found

    async def messages(self, path: str, count: int, **headers: Any) -> list[str]:
        found = []
        for number in range(count):
            self._lines += 1
            batch = [{"n": self._lines, "part": part} for part in range(number % 3 + 1)]
            found.append(await self.append(path, json.dumps(batch).encode(), JSON, **headers))
        return found

    async def produced(
        self,
        path: str,
        producer: str,
        epoch: int,
        sequences: range,
        expect: tuple[int, ...] = (200,),
    ) -> None:
        for sequence in sequences:
            body = json.dumps({"by": producer, "epoch": epoch, "seq": sequence, "x": "y" * 90})
            await self.append(
                path,
                body.encode(),
                JSON,
                expect,
                Producer_Id=producer,
                Producer_Epoch=str(epoch),
                Producer_Seq=str(sequence),
            )

    async def token(self, name: str, *scopes: str) -> None:
        body = json.dumps({"name": name, "scopes": scopes}).encode()
        await self.ask("POST", "/auth/tokens", body, {**JSON, **OPERATOR})

    # -- the cold store ------------------------------------------------------------------------

    async def flushed(self) -> None:
        """Wait until all bytes hot now are in packs."""
        await self.ask("POST", "/cluster/cold/flush", b"{}", JSON, (200, 202))
        await until(lambda: self.node.group.state.header.hot_bytes == 0)

    async def archived(self) -> None:
        await a_round(self.node, "archive")

    async def snapshot(self) -> None:
        """Wait until the archive has a newer state, and all the log up to it."""
        assert self.node.archive is not None
        self.server.clock.ahead_ms += 11 * MINUTE_MS
        before = self.node.archive.newest_checkpoint
        await self.archived()
        await a_round(self.node, "snapshot")
        after = self.node.archive.newest_checkpoint
        assert after not in (None, before)
        await self.archived()


async def write_rich(directory: Path, place: Place, *, subscribed: bool = True) -> None:
    """Everything that streams can do, in one node's life: several packs, segments, and two states,
    the newer one with bytes in no pack yet and a log that continues after it. Without subscriptions
    another group could have written it."""
    serve = serving(directory, cold=place.cold(), auth=AUTH)
    async with serve as server, server.client() as http:
        author = Author(server, http)
        subscriber = Subscriber(author) if subscribed else None
        await write_up_to_newest_state(author, subscriber)
        await _fifth_day(author)
        if subscriber is not None:
            await subscriber.leave()
        await author.archived()


async def write_up_to_newest_state(author: Author, subscriber: Subscriber | None) -> None:
    await _first_day(author)
    if subscriber is not None:
        await subscriber.make()
    await author.flushed()
    await author.archived()
    await _second_day(author)
    if subscriber is not None:
        await subscriber.work()
    await author.flushed()
    await author.snapshot()
    await _third_day(author)
    await author.flushed()
    await author.archived()
    await _fourth_day(author)
    if subscriber is not None:
        await subscriber.lapse()
    await author.snapshot()


async def _first_day(author: Author) -> None:
    for bucket in ("agents", "scratch", "tools"):
        await author.ask("PUT", f"/{bucket}")
    await author.ask("PUT", "/tools", expect=(200, 409))
    await author.ask("DELETE", "/scratch")
    await author.create("/agents/chat")
    chat = await author.lines("/agents/chat", 30)
    await author.create("/agents/events", JSON, b'[{"n":0},{"n":-1}]')
    events = await author.messages("/agents/events", 15)
    await author.create("/agents/orders", JSON)
    await author.produced("/agents/orders", "shop", 0, range(8))
    await author.produced("/agents/orders", "shop", 0, range(6, 8), expect=(204,))
    await author.produced("/agents/orders", "shop", 0, range(12, 13), expect=(409,))
    await author.create("/agents/ticks")
    for number in range(10):
        await author.append("/agents/ticks", b"tick %d\n" % number, Stream_Seq=f"a{number:03d}")
    await author.append("/agents/ticks", b"tock\n", expect=(409,), Stream_Seq="a003")
    await author.append("/agents/ticks", b"{}", JSON, expect=(409,))
    await author.create("/v1/stream/free/path/to", BYTES, bytes(range(256)) * 4)
    await author.append("/v1/stream/free/path/to", bytes(range(255, -1, -1)) * 8, BYTES)
    frames = b"".join(len(part).to_bytes(4) + part for part in (b"one\n", b"two, longer\n", b"3\n"))
    await author.ask("POST", "/agents/chat/append-batch", frames, TEXT)
    await author.create(
        "/agents/fork", Stream_Forked_From="/agents/chat", Stream_Fork_Offset=chat[9]
    )
    await author.lines("/agents/fork", 5)
    await author.create(
        "/agents/inside",
        Stream_Forked_From="/agents/chat",
        Stream_Fork_Offset=chat[4],
        Stream_Fork_Sub_Offset="100",
    )
    await author.lines("/agents/inside", 4)
    await author.create(
        "/agents/some",
        JSON,
        Stream_Forked_From="/agents/events",
        Stream_Fork_Offset=events[4],
        Stream_Fork_Sub_Offset="2",
    )
    await author.messages("/agents/some", 3)
    await author.create("/agents/parent", body=b"what only its fork reads\n")
    at = (await author.lines("/agents/parent", 3))[1]
    await author.create("/agents/child", Stream_Forked_From="/agents/parent", Stream_Fork_Offset=at)
    await author.ask("DELETE", "/agents/parent")
    await author.ask("GET", "/agents/parent", expect=(410,))


async def _second_day(author: Author) -> None:
    await author.lines("/agents/chat", 25)
    await author.messages("/agents/events", 10)
    await author.produced("/agents/orders", "shop", 1, range(5))
    await author.produced("/agents/orders", "shop", 0, range(8, 9), expect=(403,))
    await author.produced("/agents/orders", "van", 0, range(4))
    await author.lines("/agents/child", 4)
    await author.create("/agents/gone", body=b"the first life\n")
    await author.lines("/agents/gone", 6)
    await author.ask("DELETE", "/agents/gone")
    await author.append("/agents/gone", b"nobody home\n", expect=(404,))
    await author.create("/agents/gone", body=b"another life\n")
    await author.lines("/agents/gone", 5)
    await author.create("/agents/story")
    story = await author.lines("/agents/story", 12)
    await author.ask("PUT", f"/agents/story/snapshot/{story[4]}", b"five lines", TEXT)
    await author.create("/agents/short", Stream_TTL="60")
    await author.lines("/agents/short", 2)
    await author.create("/agents/lease", Stream_TTL="604800")
    await author.lines("/agents/lease", 6)
    await author.create("/agents/until", Stream_Expires_At="2099-01-01T00:00:00Z")
    await author.lines("/agents/until", 6)
    await author.create("/agents/done")
    await author.lines("/agents/done", 5)
    await author.append("/agents/done", b"the end\n", Stream_Closed="true")
    await author.append("/agents/done", b"after the end\n", expect=(409,))
    await author.create("/agents/born-closed", body=b"all there ever is\n", Stream_Closed="true")
    tag = (await author.ask("HEAD", "/agents/until")).headers["etag"]
    await author.append("/agents/until", b"as I saw it\n", If_Match=tag)
    await author.append("/agents/until", b"as I saw it\n", expect=(412,), If_Match=tag)
    quotas = b'{"max_bytes":60,"max_streams":2}'
    await author.ask("PUT", "/cluster/limits/buckets/small", quotas, JSON)
    await author.create("/v1/stream/small/one", body=bytes(50))
    await author.append("/v1/stream/small/one", bytes(11), expect=(507,))
    await author.create("/v1/stream/small/two")
    await author.ask("PUT", "/v1/stream/small/three", b"", TEXT, (403,))
    await author.token("ci", "append:agents/run-*", "read:agents/*")
    await author.token("left", "read:*")
    await author.ask("PUT", "/cluster/limits/identities/token:ci", b'{"live_readers":3}', JSON)


async def _third_day(author: Author) -> None:
    # The eleven minutes of the snapshot have ended the short one.
    await author.ask("GET", "/agents/short", expect=(404,))
    await author.lines("/agents/chat", 20)
    await author.lines("/agents/fork", 8)
    at = (await author.ask("HEAD", "/agents/fork")).headers["stream-next-offset"]
    await author.create("/agents/twig", Stream_Forked_From="/agents/fork", Stream_Fork_Offset=at)
    await author.lines("/agents/twig", 5)
    story = await author.lines("/agents/story", 8)
    await author.ask("PUT", f"/agents/story/snapshot/{story[2]}", b"z" * 400_000, TEXT)
    await author.produced("/agents/orders", "shop", 1, range(5, 9))
    for number in range(10, 15):
        await author.append("/agents/ticks", b"tick %d\n" % number, Stream_Seq=f"a{number:03d}")
    await author.ask("DELETE", "/agents/gone")
    await author.ask("GET", "/agents/lease")
    await author.ask("POST", "/auth/tokens/ci/rotate", b'{"overlap_s":60}', {**JSON, **OPERATOR})
    await author.ask("DELETE", "/auth/tokens/left", headers=OPERATOR)
    await author.token("ops", "operate:*")


async def _fourth_day(author: Author) -> None:
    """Streams with records in the newest state's own rows."""
    await author.lines("/agents/chat", 6)
    await author.messages("/agents/events", 4)
    await author.produced("/agents/orders", "van", 0, range(4, 8))
    await author.lines("/agents/twig", 3)
    await author.append("/agents/lease", b"renewed\n")
    await author.create("/agents/late", body=b"never in a pack\n")
    await author.lines("/agents/late", 6)
    await author.append("/agents/late", b"", Stream_Closed="true")
    await author.append("/v1/stream/small/two", bytes(11), expect=(507,))
    await author.append("/v1/stream/small/two", bytes(4))
    for number in range(15, 18):
        await author.append("/agents/ticks", b"tick %d\n" % number, Stream_Seq=f"a{number:03d}")


async def _fifth_day(author: Author) -> None:
    """Records that only the log has."""
    await author.lines("/agents/chat", 4)
    await author.produced("/agents/orders", "van", 0, range(8, 10))
    await author.create("/tools/new", JSON)
    await author.messages("/tools/new", 3)
    await author.append("/v1/stream/small/one", bytes(7), expect=(507,))
    await author.append("/v1/stream/small/one", bytes(6))
    await author.append("/agents/until", b"the last of it\n", Stream_Closed="true")
    await author.ask("DELETE", "/auth/tokens/ops", headers=OPERATOR)
    await author.token("later", "read:agents/chat")


async def write_little(directory: Path, place: Place) -> None:
    """Another cluster's few objects, at the same positions of its log."""
    async with serving(directory, cold=place.cold()) as server, server.client() as http:
        author = Author(server, http)
        await author.create("/v1/stream/other/one")
        await author.lines("/v1/stream/other/one", 12)
        await author.flushed()
        await author.snapshot()
        await author.lines("/v1/stream/other/one", 4)
        await author.flushed()
        await author.archived()
