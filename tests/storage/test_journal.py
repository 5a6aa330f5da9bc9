"""The journal's file: what was confirmed is there or missed, what was torn is left out, and the two
are told apart whatever lies in the file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.storage import journal
from streamd.storage.journal import (
    SECTOR_BYTES,
    Journal,
    JournalDamaged,
    Mark,
    records,
    records_left,
)
from tests.support.seeds import one_each

BEGINNING = Mark(journal_id=0x5EED)
# Within a sector, just filling it, just not, and over many.
SIZES = (0, 10, 472, 473, 600, 3_000, 9_000)
SMALL_BYTES = 64 * 1024


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", SMALL_BYTES)


class Written:
    """A journal's file after some records, and where each of them ended.

    `laps` is how often the file had been filled before, with records that look like these.
    """

    def __init__(self, file: Path, seed: int, count: int, laps: int = 0) -> None:
        random = Random(seed)
        journal.create(file)
        opened = Journal(file, BEGINNING)
        while opened.head.sequence < 2 or laps > 0:
            before = opened.head.offset
            append(opened, b"x" * random.choice(SIZES))
            opened.release(opened.head)
            laps -= opened.head.offset < before
        self.bodies = [
            b"x" * (random.choice(SIZES) - 1) + bytes([number]) for number in range(count)
        ]
        self.marks = [opened.head]
        for body in self.bodies:
            append(opened, body)
            self.marks.append(opened.head)
        opened.close()
        self.content = file.read_bytes()

    @property
    def last_sectors(self) -> range:
        """Where the sectors of the last record are."""
        end = self.marks[-1].offset
        start = self.marks[-2].offset
        return range(start if start < end else 0, end, SECTOR_BYTES)


def append(opened: Journal, body: bytes) -> None:
    assert opened.append(body)


def bodies(content: bytes, mark: Mark) -> list[bytes]:
    return [record.body for record in records(content, mark)]


@pytest.fixture(scope="module", params=[(1, 1, 0), (2, 9, 0), (3, 5, 1), (4, 4, 2)])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "MAX_BYTES", SMALL_BYTES)
        return Written(tmp_path_factory.mktemp("journal") / "journal", *request.param)


def test_records_are_read_from_any_mark_on(written: Written) -> None:
    for number, mark in enumerate(written.marks):
        assert bodies(written.content, mark) == written.bodies[number:]
    ends = [record.end for record in records(written.content, written.marks[0])]
    assert ends == written.marks[1:]


@given(st.data())
@settings(max_examples=60)
def test_a_write_of_which_any_sectors_are_missing_is_left_out(
    written: Written, data: st.DataObject
) -> None:
    """Where they are missing there is what was there before: older records, or zeros."""
    older = [at for at in range(0, SMALL_BYTES, SECTOR_BYTES) if at not in written.last_sectors]
    torn = bytearray(written.content)
    for sector in written.last_sectors:
        if data.draw(st.booleans(), "is lost"):
            at = data.draw(st.sampled_from(older), "before")
            torn[sector : sector + SECTOR_BYTES] = written.content[at : at + SECTOR_BYTES]
    whole = written.bodies if torn == written.content else written.bodies[:-1]
    assert bodies(bytes(torn), written.marks[0]) == whole


@given(st.data())
@settings(max_examples=150)
def test_no_flipped_bit_of_a_record_goes_unnoticed_also_of_the_last(
    written: Written, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(written.bodies) - 1), "record")
    start, end = written.marks[number].offset, written.marks[number + 1].offset
    place = data.draw(st.integers(start if start < end else 0, end - 1), "place")
    damaged = bytearray(written.content)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7), "bit")
    with pytest.raises(JournalDamaged):
        bodies(bytes(damaged), written.marks[0])


def test_a_record_that_is_lost_though_a_later_one_was_begun_is_damage(written: Written) -> None:
    for mark, end in pairwise(written.marks[:-1]):
        start = mark.offset if mark.offset < end.offset else 0
        damaged = bytearray(written.content)
        damaged[start : end.offset] = bytes(end.offset - start)
        # Not even all of the last one is there.
        torn = written.last_sectors[1:]
        for sector in torn:
            damaged[sector : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        with pytest.raises(JournalDamaged, match=r"is lost, though record \d+ was begun"):
            bodies(bytes(damaged), written.marks[0])


def test_what_is_whole_is_read_beside_what_is_not(written: Written) -> None:
    first = written.marks[0].sequence
    for mark, end in pairwise(written.marks):
        start = mark.offset if mark.offset < end.offset else 0
        damaged = bytearray(written.content)
        damaged[start + 30] ^= 4
        left = [record.body for record in records_left(bytes(damaged), first)]
        assert left == [
            body for number, body in enumerate(written.bodies) if number != mark.sequence - first
        ]


def test_bytes_of_a_client_that_look_like_a_later_record_are_ignored(tmp_path: Path) -> None:
    """They lie where a record might begin, and all of it is right but the stamp."""
    forged, _ = journal._encoded(Mark(BEGINNING.journal_id, 2), b"forged")
    in_a_sector = forged[: SECTOR_BYTES - 4]
    body = bytes(SECTOR_BYTES - 4 - journal._HEAD.size) + in_a_sector + bytes(2000)
    journal.create(tmp_path / "journal")
    opened = Journal(tmp_path / "journal", BEGINNING)
    append(opened, body)
    opened.close()
    content = bytearray((tmp_path / "journal").read_bytes())
    assert in_a_sector in content
    assert bodies(bytes(content), BEGINNING) == [body]
    content[:SECTOR_BYTES] = bytes(SECTOR_BYTES)
    assert bodies(bytes(content), BEGINNING) == []


def test_two_torn_writes_after_each_other_do_not_pass_for_one(tmp_path: Path) -> None:
    """The second begins where the first did, and only its first sector reaches the disk."""
    file = tmp_path / "journal"
    journal.create(file)
    first = Journal(file, BEGINNING)
    append(first, b"a" * 2000)
    first.close()
    torn = bytes(SECTOR_BYTES) + file.read_bytes()[SECTOR_BYTES:]
    assert bodies(torn, BEGINNING) == []
    second = Journal(file, BEGINNING.after_start)
    append(second, b"b" * 2000)
    second.close()
    again = file.read_bytes()[:SECTOR_BYTES] + torn[SECTOR_BYTES:]
    assert bodies(again, BEGINNING.after_start) == []


def test_a_record_of_another_journal_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    journal.create(file)
    other = Journal(file, Mark(journal_id=7))
    append(other, b"of the other")
    append(other, b"and again")
    other.close()
    assert bodies(file.read_bytes(), BEGINNING) == []


def test_a_record_that_follows_another_one_is_damage(written: Written) -> None:
    mark = written.marks[-2]
    wrong = Mark(mark.journal_id, mark.sequence, mark.offset, mark.chain ^ 1)
    with pytest.raises(JournalDamaged, match="does not follow"):
        bodies(written.content, wrong)


def test_a_file_cut_short_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where no record is left that was begun later, also not in the second after a floor."""
    monkeypatch.setattr(journal, "MAX_BYTES", 4 * SMALL_BYTES)
    file = tmp_path / "journal"
    journal.create(file)
    opened = Journal(file, BEGINNING)
    ends = [0]
    while opened.append(b"x" * 700):
        ends.append(opened.head.offset)
    opened.close()
    content = file.read_bytes()
    assert bodies(content, BEGINNING) == [b"x" * 700] * (len(ends) - 1)
    for size in [*ends[:-1], *range(0, len(content), 4096), *range(0, len(content), 999)]:
        once = SMALL_BYTES if size < 2 * SMALL_BYTES else 2 * SMALL_BYTES
        if not once <= size < once + SECTOR_BYTES:  # as it was when it had that size
            with pytest.raises(JournalDamaged, match="cut short"):
                bodies(content[:size], BEGINNING)


def test_a_file_cut_below_its_mark_is_damage(written: Written) -> None:
    end = written.marks[-1]
    for size in range(0, end.offset, 500):
        with pytest.raises(JournalDamaged, match="cut short"):
            bodies(written.content[:size], end)


def test_what_power_left_of_a_file_that_grew_is_filled_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 4 * SMALL_BYTES)
    file = tmp_path / "journal"
    journal.create(file)
    opened = Journal(file, BEGINNING)
    while opened.head.offset + SECTOR_BYTES < SMALL_BYTES:
        append(opened, b"before")
    opened.close()
    stale = b"an older file's" * 1000
    file.write_bytes(file.read_bytes() + stale)
    assert set(bodies(file.read_bytes(), BEGINNING)) == {b"before"}
    opened = Journal(file, opened.head)
    append(opened, b"x" * 2_000)
    opened.close()
    content = file.read_bytes()
    assert len(content) == 2 * SMALL_BYTES
    assert not any(content[opened.head.offset :])
    assert bodies(content, BEGINNING)[-1] == b"x" * 2_000


def test_a_file_made_longer_is_read_as_before(tmp_path: Path) -> None:
    """Its last record is at the beginning, because there was no more room at the end."""
    file = tmp_path / "journal"
    journal.create(file)
    opened = Journal(file, BEGINNING)
    while opened.head.offset + 3_000 < SMALL_BYTES:
        append(opened, b"earlier")
    mark = opened.head
    opened.release(mark)
    append(opened, b"x" * 3_000)
    assert opened.head.offset < mark.offset
    opened.close()
    for more in (0, 1, 3_000, SMALL_BYTES):
        assert bodies(file.read_bytes() + bytes(more), mark) == [b"x" * 3_000]


# -- room -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", one_each(20, 5))
def test_nothing_that_is_needed_is_ever_overwritten(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    file = tmp_path / "journal"
    journal.create(file)
    opened = Journal(file, BEGINNING)
    needed: list[tuple[bytes, Mark]] = []
    tail = BEGINNING
    refusals = 0
    for _ in range(500):
        body = random.randbytes(random.choice(SIZES))
        if opened.append(body):
            needed.append((body, opened.head))
        else:
            refusals += 1
            released = needed[: random.randint(1, len(needed))]
            del needed[: len(released)]
            tail = released[-1][1]
            opened.release(tail)
        if random.random() < 0.2:
            assert bodies(file.read_bytes(), tail) == [body for body, _ in needed]
        if random.random() < 0.01:
            opened.close()
            opened = Journal(file, opened.head)
            tail, needed = opened.head, []
    opened.close()
    assert file.stat().st_size == SMALL_BYTES
    assert refusals > 3


def test_the_file_grows_only_when_it_is_needed_and_is_filled_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 4 * SMALL_BYTES)
    file = tmp_path / "journal"
    journal.create(file)
    opened = Journal(file, BEGINNING)
    sizes = {file.stat().st_size}
    while opened.append(b"x" * 3_000):
        sizes.add(file.stat().st_size)
        assert not any(file.read_bytes()[opened.head.offset :])
    opened.close()
    assert sorted(sizes) == [SMALL_BYTES, 2 * SMALL_BYTES, 4 * SMALL_BYTES]
