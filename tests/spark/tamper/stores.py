"""A small cluster's cold store in a directory, written by the server, with what it had earlier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamd.config.settings import ColdConfig
from tests.http.serving import serving
from tests.spark.buckets import AUTH, JSON, OPERATOR, TEXT, Author
from tests.spark.subscribed_authors import Subscriber

Objects = dict[str, bytes]


@dataclass
class Grown:
    """The objects of a cluster's group by their names, and as of `moments` before that, the
    earliest first. With `is_cut` retention has removed the beginning of the log."""

    cluster_id: str = ""
    objects: Objects = field(default_factory=dict)
    moments: list[Objects] = field(default_factory=list)
    is_cut: bool = False
    group_id: int = 0

    def note(self, root: Path) -> None:
        """Take what a directory holds now."""
        if self.objects:
            self.moments.append(self.objects)
        self.objects = read_objects(root)
        [self.cluster_id] = {name.partition("/")[0] for name in self.objects}


def read_objects(root: Path) -> Objects:
    """The objects of a store in a directory, by their names. A server may be writing more."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.glob("[!.]*/**/*"))
        if path.is_file()
    }


def write_objects(root: Path, objects: Mapping[str, bytes]) -> None:
    for name, content in objects.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def cold_at(root: Path) -> ColdConfig:
    """Nothing is flushed or removed unless it is asked."""
    return ColdConfig(
        backend="fs",
        fs_path=str(root),
        pack_bytes=64 * 1024,
        flush_after_ms=10**9,
        snapshot_interval_minutes=10,
        archive_retention_hours=1000,
        hot_keep_bytes=1,
        gc_interval_ms=10**9,
    )


async def grow(directory: Path) -> Grown:
    """Every feature of streams in few commands: several packs, segments and states, some bytes
    that are in no pack yet, and entries after the newest state."""
    found, root = Grown(), directory / "cold"
    async with serving(directory, cold=cold_at(root), auth=AUTH) as server, server.client() as http:
        author = Author(server, http)
        subscriber = Subscriber(author)
        lives = zip(
            (_first, _second, _third, _fourth),
            (subscriber.make, subscriber.work, None, subscriber.lapse),
            strict=True,
        )
        for life, of_subscriber in lives:
            await life(author)
            if of_subscriber is not None:
                await of_subscriber()
            await author.snapshot()
            found.note(root)
        await _fifth(author)
        await subscriber.leave()
        await author.archived()
    found.note(root)
    return found


async def grow_other(directory: Path) -> Grown:
    """Another cluster, at the same entries of its log."""
    found, root = Grown(), directory / "cold"
    async with serving(directory, cold=cold_at(root)) as server, server.client() as http:
        author = Author(server, http)
        await author.create("/v1/stream/other/one")
        await author.lines("/v1/stream/other/one", 12, 30)
        await author.flushed()
        await author.snapshot()
        await author.lines("/v1/stream/other/one", 4, 30)
        await author.flushed()
        await author.archived()
    found.note(root)
    return found


async def _first(author: Author) -> None:
    for bucket in ("agents", "scratch"):
        await author.ask("PUT", f"/{bucket}")
    await author.ask("DELETE", "/scratch")
    await author.create("/agents/chat")
    chat = await author.lines("/agents/chat", 8, 30)
    await author.create("/agents/orders", JSON, b'[{"n":0},{"n":-1}]')
    await author.produced("/agents/orders", "shop", 0, range(3))
    await author.produced("/agents/orders", "shop", 0, range(2, 3), expect=(204,))
    await author.produced("/agents/orders", "shop", 0, range(7, 8), expect=(409,))
    await author.create("/agents/ticks")
    for number in range(3):
        await author.append("/agents/ticks", b"tick %d\n" % number, Stream_Seq=f"a{number:03d}")
    await author.append("/agents/ticks", b"tock\n", expect=(409,), Stream_Seq="a001")
    await author.create(
        "/agents/fork", Stream_Forked_From="/agents/chat", Stream_Fork_Offset=chat[3]
    )
    await author.lines("/agents/fork", 2, 30)
    await author.create("/agents/parent", body=b"what only its fork reads\n")
    at = (await author.lines("/agents/parent", 2, 30))[0]
    await author.create("/agents/child", Stream_Forked_From="/agents/parent", Stream_Fork_Offset=at)
    await author.ask("DELETE", "/agents/parent")
    await author.token("ci", "append:agents/run-*", "read:agents/*")
    await author.flushed()


async def _second(author: Author) -> None:
    await author.lines("/agents/chat", 4, 30)
    await author.create("/agents/gone", body=b"the first life\n")
    await author.lines("/agents/gone", 2, 30)
    await author.ask("DELETE", "/agents/gone")
    await author.create("/agents/gone", body=b"another life\n")
    await author.create("/agents/story")
    story = await author.lines("/agents/story", 5, 30)
    await author.ask("PUT", f"/agents/story/snapshot/{story[2]}", b"three lines", TEXT)
    await author.create("/agents/lease", Stream_TTL="604800")
    await author.lines("/agents/lease", 2, 30)
    await author.create("/agents/until", Stream_Expires_At="2099-01-01T00:00:00Z")
    await author.lines("/agents/until", 2, 30)
    await author.create("/agents/short", Stream_TTL="60")
    await author.create("/agents/done", body=b"all there ever is\n", Stream_Closed="true")
    quotas = b'{"max_bytes":60,"max_streams":2}'
    await author.ask("PUT", "/cluster/limits/buckets/small", quotas, JSON)
    await author.create("/v1/stream/small/one", body=bytes(50))
    await author.append("/v1/stream/small/one", bytes(11), expect=(507,))
    await author.ask("PUT", "/cluster/limits/identities/token:ci", b'{"live_readers":3}', JSON)
    await author.flushed()


async def _third(author: Author) -> None:
    # The eleven minutes of the state before have ended the short one.
    await author.ask("GET", "/agents/short", expect=(404,))
    await author.lines("/agents/fork", 2, 30)
    story = await author.lines("/agents/story", 3, 30)
    await author.ask("PUT", f"/agents/story/snapshot/{story[0]}", b"z" * 5000, TEXT)
    await author.produced("/agents/orders", "shop", 1, range(2))
    await author.produced("/agents/orders", "van", 0, range(2))
    await author.ask("DELETE", "/agents/gone")
    await author.ask("GET", "/agents/lease")
    await author.ask("POST", "/auth/tokens/ci/rotate", b'{"overlap_s":60}', {**JSON, **OPERATOR})
    await author.token("ops", "operate:*")
    await author.flushed()


async def _fourth(author: Author) -> None:
    """Streams with records in the state's own rows."""
    await author.lines("/agents/chat", 3, 30)
    await author.create("/agents/late", body=b"never in a pack\n")
    await author.lines("/agents/late", 2, 30)
    await author.append("/agents/late", b"", Stream_Closed="true")
    await author.append("/agents/ticks", b"tick 3\n", Stream_Seq="a003")
    story = (await author.ask("HEAD", "/agents/story")).headers["stream-next-offset"]
    await author.ask("PUT", f"/agents/story/snapshot/{story}", b"a body in the state", TEXT)


async def _fifth(author: Author) -> None:
    """Records that only the log has."""
    await author.lines("/agents/chat", 2, 30)
    await author.append("/agents/until", b"the last of it\n", Stream_Closed="true")
    await author.ask("DELETE", "/auth/tokens/ops", headers=OPERATOR)
    await author.token("later", "read:agents/chat")
