"""Heads that were kept elsewhere show what the checksums of a store cannot: that all of it was set
back, or written again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from streamd.objectstore.names import digest_of
from streamd.objectstore.segments import SegmentWriter, read_entries, tree_of_segment
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.model import LogPosition, LogTree
from streamd_audit import audit, options, tree_job
from tests.http.test_log_heads import head_after
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]


class Kept(NamedTuple):
    """A store, a copy of it from the time of the first head, and two heads."""

    store: Path
    earlier: Path
    first: Path
    second: Path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    place = tmp_path_factory.mktemp("kept")
    found = Kept(*(place / name for name in Kept._fields))
    found.store.mkdir(mode=0o700)
    environment = {"STREAMD_COLD_BACKEND": "fs", "STREAMD_COLD_FS_PATH": str(found.store)}
    with (
        ServerProcess(place / "data", environment=environment) as server,
        checked_client(base_url=server.url) as client,
    ):
        found.first.write_text(json.dumps(head_after(client, b"I paid ten")))
        shutil.copytree(found.store, found.earlier)
        found.second.write_text(json.dumps(head_after(client, b"and ten more")))
    return found


@pytest.fixture
def store(kept: Kept, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept.store, tmp_path / "store"))


def judged(capsys: pytest.CaptureFixture[str], *arguments: Path | str) -> tuple[int, str]:
    """Exit status and summary of the comparison with heads."""
    status = tree_job.main(["--store", *map(str, arguments)])
    return status, capsys.readouterr().out


def test_a_whole_store_is_the_one_of_its_heads(
    kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = ["--expect", str(kept.first), str(kept.second)]
    status = audit.main(["--store", str(kept.store), "--out", str(tmp_path), *expected])
    told = capsys.readouterr().out
    assert status == 0, told
    index = json.loads(kept.second.read_text())["note"].splitlines()[1]
    assert f"the log up to entry {int(index):,} is the one of 2 heads that were kept" in told


def test_a_store_that_was_set_back_is_found_by_a_later_head(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judged(capsys, kept.earlier, "--expect", kept.first)[0] == 0
    status, told = judged(capsys, kept.earlier, "--expect", kept.second)
    assert status == 1
    assert "history_rolled_back" in told


def test_a_log_that_was_written_again_is_found_by_any_head(
    kept: Kept, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(store, b"I paid ten", b"I paid two")
    assert judged(capsys, store)[0] == 0, "nothing in the store contradicts it"
    for head in (kept.first, kept.second):
        status, told = judged(capsys, store, "--expect", head)
        assert status == 1
        assert "history_changed" in told


def test_a_segment_with_a_tree_of_another_past_is_found(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, last = segments(store)
    frame = tree_of_segment(last.read_bytes())
    assert frame is not None
    forged = tuple(bytes(32) for _ in frame.nodes)
    written(last, [*entries_of(last)], LogTree(frame.first_index, forged))
    status, told = judged(capsys, store)
    assert status == 1
    assert "tree_differs" in told


def test_a_segment_whose_tree_was_taken_away_is_found(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, last = segments(store)
    written(last, [*entries_of(last)], None)
    status, told = judged(capsys, store)
    assert status == 1
    assert "tree_differs" in told


def test_a_stored_head_that_no_trusted_key_signed_is_found(
    kept: Kept, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, stored = sorted(store.glob("*/heads/*/*.head"))
    said: dict[str, Any] = json.loads(stored.read_text())
    note = said["note"].replace("time 1", "time 2")
    content = json.dumps({**said, "note": note}).encode()
    stored.unlink()
    index = stored.name.partition("-")[0]
    (stored.parent / f"{index}-{digest_of(content)}.head").write_bytes(content)
    status, told = judged(capsys, store, "--expect", kept.first)
    assert status == 1
    assert "head_damaged" in told


@pytest.mark.parametrize("text", ["", "[]", "{}", "no JSON"])
def test_a_file_without_a_head_is_refused(kept: Kept, tmp_path: Path, text: str) -> None:
    head = tmp_path / "head.json"
    head.write_text(text)
    with pytest.raises(options.NotRun, match=r"--expect .*head\.json"):
        tree_job.main(["--store", str(kept.store), "--expect", str(head)])


def test_a_head_that_the_named_key_has_not_signed_is_refused(kept: Kept) -> None:
    key = json.loads(kept.first.read_text())["keys"][0]["key"]
    other = key.replace("streamd/", "streamd/0")
    with pytest.raises(options.NotRun, match="keys do not lead"):
        tree_job.main(["--store", str(kept.store), "--expect", str(kept.first), "--key", other])


# -- forging ---------------------------------------------------------------------------------


def segments(store: Path) -> list[Path]:
    return sorted(store.glob("*/log/*/*.segment"))


def entries_of(segment: Path) -> Iterator[tuple[Entry, LogPosition]]:
    return read_entries(segment.read_bytes())


def rewrite(store: Path, old: bytes, new: bytes) -> None:
    """Write the whole log again, with other bytes in it, and remove what contradicts it."""
    for kind in ("ends", "heads"):
        for name in store.glob(f"*/{kind}/*/*"):
            name.unlink()
    found = [one for segment in segments(store) for one in entries_of(segment)]
    first, *others = segments(store)
    for one in others:
        one.unlink()
    written(first, [(_changed(entry, old, new), place) for entry, place in found], LogTree(1))


def _changed(entry: Entry, old: bytes, new: bytes) -> Entry:
    if entry.kind != EntryKind.COMMANDS:
        return entry
    return Entry(entry.index, entry.term, entry.kind, entry.payload.replace(old, new))


def written(segment: Path, found: list[tuple[Entry, LogPosition]], tree: LogTree | None) -> None:
    """Replace a segment by one with these entries."""
    cluster = segment.parents[2].name
    previous = LogPosition()
    for other in segments(segment.parents[3]):
        places = [place for _, place in entries_of(other) if place.index < found[0][0].index]
        previous = places[-1] if places else previous
    writer = SegmentWriter(0, previous, cluster, tree)
    for entry, _ in found:
        writer.add(entry)
    named = writer.finish()
    segment.unlink()
    (segment.parents[2] / named.name).write_bytes(named.content)
