"""The audit's decoders and the server's read the same objects alike."""

from __future__ import annotations

import tarfile
from pathlib import Path

import msgspec
import pytest

from streamd.codec import decode_batch
from streamd.cold.segments import placed_entries_of
from streamd_audit import commands, names, segments
from streamd_audit.store import open_store
from tests.releases.record import HERE

RELEASES = sorted(file.stem for file in HERE.glob("*.json"))


@pytest.fixture(scope="module", params=RELEASES)
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cold store that a server of a release left."""
    directory = tmp_path_factory.mktemp("release")
    with tarfile.open(HERE / f"{request.param}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "data" / "cold"


def objects(store_at: Path) -> dict[str, bytes]:
    """All objects of the only cluster, by their names below its folder."""
    store = open_store(str(store_at))
    found = [listed for page in store.list() for listed in page]
    return {names.split(name)[1]: store.read(name) for name, _ in found}


def test_the_log_of_a_release_is_read_alike(released: Path) -> None:
    entries = 0
    for name, content in objects(released).items():
        parsed = names.parse(name)
        if not isinstance(parsed, names.SegmentName):
            continue
        segments.check_name(parsed, segments.read_head(content[: segments.HEAD_BYTES]))
        ours = placed_entries_of(content)
        for (entry, place), found in zip(ours, segments.read_entries(content), strict=True):
            entries += 1
            assert found.is_linked
            assert (found.index, found.term, found.kind) == (entry.index, entry.term, entry.kind)
            assert (found.chain, found.time_ms) == (place.chain, place.time_ms)
            assert bytes(found.payload) == entry.payload
            if found.kind == segments.COMMANDS:
                expected = decode_batch(entry.payload).commands
                batch = commands.decode_batch(found.payload)
                assert msgspec.msgpack.encode(batch.commands) == msgspec.msgpack.encode(expected)
    assert entries > 100
