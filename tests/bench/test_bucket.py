"""A bucket generated for measurements is one that a cluster could have written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.bucket import Shape, Written, write_bucket
from streamd.objectstore.fs import FsStore
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.model import Stream
from tests.support.archived import Said, cold_in, restored, said_by

_STREAM = msgspec.msgpack.Decoder(Stream)


def write(directory: Path, shape: Shape) -> Written:
    return write_bucket(FsStore(directory / "cold"), directory / "rows", shape)


async def said_by_restored(directory: Path, name: str) -> Said:
    """The content of the state that a restore makes of the objects; it has read every pack."""
    cold, _ = cold_in(directory / "cold")
    await restored(cold, directory / name, fencing=False)
    store = StateStore(directory / name / "state")
    try:
        return said_by(store)
    finally:
        store.close()


def streams_of(said: Said) -> dict[bytes, Stream]:
    rows = said.rows.items()
    return {key[1:]: _STREAM.decode(value) for key, value in rows if key[:1] == keys.STREAM}


async def test_a_restore_from_its_checkpoint_or_from_its_log_has_the_same_state(
    tmp_path: Path,
) -> None:
    written = write(tmp_path, Shape(megabytes=20, entries=2_000))
    from_checkpoint = await said_by_restored(tmp_path, "from-snapshot")
    for manifest in (tmp_path / "cold").rglob("*.manifest"):
        manifest.unlink()
    from_log = await said_by_restored(tmp_path, "from-log")
    assert written.packs == 2
    assert from_checkpoint.rows == from_log.rows
    assert sum(stream.size for stream in streams_of(from_log).values()) == written.record_bytes


@pytest.mark.parametrize(("skewed", "least", "most"), [(True, 0.45, 0.55), (False, 0, 0.1)])
async def test_a_skewed_bucket_has_half_of_all_bytes_in_one_stream(
    tmp_path: Path, skewed: bool, least: float, most: float
) -> None:
    written = write(tmp_path, Shape(megabytes=2, entries=4_000, skewed=skewed))
    said = await said_by_restored(tmp_path, "new")
    largest = max(stream.size for stream in streams_of(said).values())
    assert least <= largest / written.record_bytes <= most
