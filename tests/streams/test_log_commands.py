"""Commands as the log may hold them: of an earlier release without verified positions, late, or
invented.

What a client cannot cause must still have one outcome on every replica, and change nothing.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.codec import Batch, encode_batch, time_of_batch
from streamd.streams.cold.packs import living_packs
from streamd.streams.cold.scrubs import Scrub
from streamd.streams.commands import (
    Append,
    BeginUpload,
    Command,
    Create,
    Delete,
    DropSlices,
    FlushCold,
    ForgetPacks,
    MovedSlice,
    MoveSlices,
    Outcome,
    PublishSnapshot,
    RenewIncarnations,
    Result,
    Scrubbed,
)
from streamd.streams.etags import incarnation_base
from streamd.streams.model import ForkRequest, IfMatch, Settings, Verdict, VerifiedPosition
from streamd.streams.offsets import Position
from streamd.streams.queries.reading import finder, read_slices, read_stored
from streamd.streams.state import due_for_sweep, idle_uploads, load_rows
from streamd.streams.tails import SEAL_BYTES
from tests.streams.driver import EVERYTHING, TEXT, Driver, key
from tests.streams.memory_store import MemoryStore


@pytest.fixture
def driver() -> Driver:
    """With three records of five bytes in stream `s`."""
    driver = Driver()
    driver.create()
    for body in (b"first", b"other", b"third"):
        driver.append(body)
    return driver


def fork_at(record: int, byte: int, finding: VerifiedPosition | None = None) -> Create:
    request = ForkRequest(key("s"), (record, byte))
    return Create(key("f"), Settings(fork=request), finding=finding)


def publish_at(record: int, byte: int, finding: VerifiedPosition | None = None) -> PublishSnapshot:
    return PublishSnapshot(key("s"), (record, byte), TEXT, 1, b"digest", 0, b"x", finding)


# -- without a verified position -------------------------------------------------------------------


@pytest.mark.parametrize("at", [(1, 5), (1, 6)])
def test_no_replica_looks_up_a_position_that_was_not_verified(
    driver: Driver, at: tuple[int, int]
) -> None:
    assert driver.do(fork_at(*at)).result is Result.STALE
    assert driver.do(publish_at(*at)).result is Result.STALE


# -- with a verified position ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (VerifiedPosition(99, Verdict.BOUNDARY, 1, 5), Result.STALE),
        (VerifiedPosition(1, Verdict.NOTHING), Result.STALE),
        (VerifiedPosition(1, Verdict.NO_BOUNDARY), Result.FORK_OFFSET_INVALID),
        (VerifiedPosition(1, Verdict.BEYOND_APPEND), Result.FORK_SUB_OFFSET_INVALID),
        (VerifiedPosition(1, Verdict.BOUNDARY, 9, 45), Result.STALE),
        (VerifiedPosition(1, Verdict.BOUNDARY, -1, 5), Result.INVALID),
        (VerifiedPosition(1, Verdict.BOUNDARY, 1, -5), Result.INVALID),
    ],
)
def test_a_fork_is_decided_by_its_verified_position(
    driver: Driver, finding: VerifiedPosition, expected: Result
) -> None:
    assert driver.do(fork_at(1, 5, finding)).result is expected
    assert driver.find("f") is None


def test_an_invented_verified_position_before_the_start_is_invalid(driver: Driver) -> None:
    made_up = VerifiedPosition(driver.stream().stream_id, Verdict.BOUNDARY, -1, 0)
    assert driver.do(publish_at(-1, 0, made_up)).result is Result.INVALID
    assert driver.stream().snapshot is None


# -- keys and ids that no row can have -------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        Create(b"no bucket", Settings()),
        Append(b"no bucket", TEXT, b"x", [1], if_match=IfMatch()),
        DropSlices(-1, [1]),
        ForgetPacks([(1, -1)]),
        MoveSlices(1, -1, "pack", 1, []),
        PublishSnapshot(key("s"), (0, 0), TEXT, 0, b"", upload_id=-1),
    ],
)
def test_keys_and_ids_that_no_row_can_have_are_invalid(driver: Driver, command: Command) -> None:
    assert driver.do(command).result is Result.INVALID


# -- the leader's own ------------------------------------------------------------------------------


def test_outcomes_carry_renewed_incarnations_from_then_on(driver: Driver) -> None:
    before = driver.append(b"more")
    assert driver.do(RenewIncarnations(1 << 62)).result is Result.DONE
    after = driver.append(b"more")
    assert after.incarnation == before.incarnation + (1 << 62)
    assert driver.do(Delete(key("none"))).incarnation == 0


def test_the_same_stream_id_has_another_incarnation_in_each_group() -> None:
    incarnations = []
    for group_id in (0, 1, 2):
        driver = Driver(group_id=group_id)
        driver.create()
        driver.flush()
        driver.reopen()
        stream = driver.state.streams.get(key("s"))
        assert stream is not None
        assert stream.stream_id == 1
        incarnations.append(driver.append(b"more").incarnation)
    assert incarnations == [1, incarnation_base(1) + 1, incarnation_base(2) + 1]


def test_a_scrub_is_noted_for_the_leader_of_the_entrys_term_alone(driver: Driver) -> None:
    assert driver.do(Scrubbed(2, Scrub(damaged_count=3))).result is Result.STALE
    assert driver.do(Scrubbed(1, Scrub(damaged_count=2))).result is Result.DONE
    assert driver.state.header.scrub.damaged_count == 2


def test_a_slice_is_accepted_only_where_its_owners_cold_records_end(driver: Driver) -> None:
    driver.flush()
    command = driver.gather()
    [new] = command.slices
    for wrong in (
        replace(new, owner=key("gone")),
        replace(new, owner=keys.blob_owner(77)),
        replace(new, stream_id=77),
        replace(new, start_record=1),
        replace(new, end_record=4),
        replace(new, end_record=0),
        replace(new, end_byte=16),
    ):
        driver.packs += 1
        pack = FlushCold(1, driver.packs, "pack", 100, [wrong])
        assert driver.do(pack).result is Result.DONE
        assert driver.stream().cold == (0, 0)
    assert driver.do(command).result is Result.DONE
    assert driver.stream().cold == driver.stream().tail
    assert driver.do(replace(command, number=driver.packs + 1)).result is Result.DONE
    driver.flush()
    assert [pack.name for pack in living_packs(driver.store)] == [command.name]


def test_a_slice_moves_only_from_the_pack_it_was_read_from(driver: Driver) -> None:
    driver.flush()
    command = driver.gather()
    assert driver.do(command).result is Result.DONE
    [new] = command.slices
    moved = MovedSlice(new.stream_id, new.end_record, 1, command.number, 0, new.length, 0)
    driver.packs = 10
    elsewhere = [
        replace(moved, from_number=9),
        replace(moved, end_record=2),
        replace(moved, stream_id=9),
    ]
    assert driver.do(MoveSlices(1, 10, "new", 1, elsewhere)).result is Result.DONE
    driver.flush()
    assert [pack.name for pack in living_packs(driver.store)] == [command.name]
    assert driver.do(MoveSlices(1, 11, "new", 1, [moved])).result is Result.DONE
    driver.flush()
    assert [pack.name for pack in living_packs(driver.store)] == ["new"]


def test_a_slice_of_a_pack_that_was_never_known_may_be_dropped() -> None:
    driver = Driver()
    driver.create()
    driver.append(b"first")
    driver.flush()
    command = driver.gather()
    [new] = command.slices
    empty = replace(command, slices=[replace(new, length=0)])
    assert driver.do(empty).result is Result.DONE
    assert driver.do(ForgetPacks([(1, command.number)])).result is Result.DONE
    assert driver.do(DropSlices(new.stream_id, [new.end_record] * 2)).result is Result.DONE
    assert driver.state.header.cold_bytes == 0


def test_all_live_packs_are_found(driver: Driver) -> None:
    store = MemoryStore()
    driver.flush()
    command = driver.gather()
    driver.do(command)
    driver.flush()
    [row] = [row for row in driver.store.rows if row[:1] == keys.PACK]
    rows = [(keys.pack_key(1, number), driver.store.rows[row]) for number in range(2500)]
    store.write(rows)
    assert len(list(living_packs(store))) == 2500


# -- rows loaded ahead -----------------------------------------------------------------------------


def test_rows_that_a_command_will_ask_for_are_named_until_they_are_loaded(driver: Driver) -> None:
    blob = keys.number(5)
    driver.flush()
    [new] = driver.gather().slices
    flush = FlushCold(1, 9, "pack", 1, [new, replace(new, owner=b"\0" + blob, stream_id=5)])
    assert [*driver.state.missing([flush])] == [keys.BLOB + blob]
    driver.state.install(keys.BLOB + blob, None)
    assert [*driver.state.missing([flush])] == []
    place = keys.slice_key(7, 3)
    moved = MovedSlice(7, 3, 1, 1, 0, 1, 0)
    for command in (DropSlices(7, [3]), MoveSlices(1, 1, "pack", 1, [moved])):
        assert [*driver.state.missing([command])] == [place]
    driver.state.install(place, None)
    assert [*driver.state.missing([DropSlices(7, [3])])] == []
    assert [*driver.state.missing([MoveSlices(1, -1, "pack", 1, [moved])])] == []


def test_rows_are_read_ahead_together() -> None:
    store = MemoryStore({keys.STREAM + b"a": b"1"})
    assert load_rows(store, [b"a", b"b"]) == {b"a": b"1", b"b": None}


def test_streams_due_and_idle_uploads_are_found_by_time(driver: Driver) -> None:
    driver.create("brief", ttl_ms=50)
    upload = driver.upload(Position(1, 5), b"part")
    driver.flush()
    now_ms = driver.now_ms
    assert due_for_sweep(driver.store, now_ms + 49, 10) == []
    assert due_for_sweep(driver.store, now_ms + 50, 10) == [key("brief")]
    assert idle_uploads(driver.store, now_ms - 1, 10) == []
    assert idle_uploads(driver.store, now_ms, 10) == [upload]


# -- values ----------------------------------------------------------------------------------------


def test_the_time_of_a_batch_is_read_without_its_commands() -> None:
    assert time_of_batch(encode_batch(Batch(1234, [Delete(key("s"))]))) == 1234


def test_an_outcome_shows_its_result_and_its_tail(driver: Driver) -> None:
    shown = repr(driver.close())
    assert shown == "Outcome(closed, 0000000000000003_0000000000000015, closed=True)"
    assert repr(Outcome(Result.GONE)).startswith("Outcome(gone, ")


def test_a_change_counts_the_bytes_appended(driver: Driver) -> None:
    driver.machine.take_changes()
    driver.append(b"four")
    driver.append(b"and five")
    [change] = driver.machine.take_changes().values()
    assert (change.size, change.start) == (12, Position(3, 15))


# -- snapshots --------------------------------------------------------------------------------


def test_a_snapshot_of_a_deleted_stream_is_not_published(driver: Driver) -> None:
    gone = replace(publish_at(0, 0), key=key("gone"))
    assert driver.do(gone).result is Result.NOT_FOUND


def test_a_snapshot_is_refused_by_its_offset(driver: Driver) -> None:
    assert driver.publish(b"state", Position(2, 10)).result is Result.PUBLISHED
    assert driver.publish(b"state", Position(2, 10)).result is Result.PUBLISHED, "again"
    assert driver.publish(b"other", Position(2, 10)).result is Result.SNAPSHOT_DIFFERS
    assert driver.publish(b"state", Position(1, 5)).result is Result.OFFSET_GONE
    stranger = VerifiedPosition(99, Verdict.BOUNDARY, 2, 11)
    for command in (
        replace(publish_at(3, 15), at=(2, 11), finding=stranger),
        BeginUpload(key("s"), (2, 11), stranger),
    ):
        assert driver.do(command).result is Result.STALE


# -- packs -----------------------------------------------------------------------------------------


def test_a_deposed_leaders_pack_and_a_repeated_one_are_stale(driver: Driver) -> None:
    driver.flush()
    command = driver.gather()
    assert driver.do(replace(command, term=2)).result is Result.STALE
    assert driver.do(command).result is Result.DONE
    assert driver.do(command).result is Result.STALE
    assert driver.do(MoveSlices(2, 5, "pack", 1, [])).result is Result.STALE


def test_a_pack_is_removed_from_the_state_once_nothing_refers_to_it(driver: Driver) -> None:
    driver.create("t")
    driver.append(b"more", "t")
    driver.flush()
    command = driver.gather()
    assert driver.do(command).result is Result.DONE
    forget = ForgetPacks([(1, command.number), (1, 99)])
    for live, new in ((True, command.slices[0]), (False, command.slices[1])):
        assert driver.do(DropSlices(new.stream_id, [new.end_record])).result is Result.DONE
        assert driver.do(forget).result is Result.DONE
        driver.flush()
        assert [row for row in driver.store.rows if row[:1] == keys.PACK] == (
            [keys.pack_key(1, command.number)] if live else []
        )
        assert len([*living_packs(driver.store)]) == live


def test_the_parts_of_a_snapshot_are_flushed_as_a_slice_of_their_blob(driver: Driver) -> None:
    upload = driver.upload(Position(2, 10), b"parts of ", b"the state")
    assert driver.publish(b"parts of the state", Position(2, 10), upload_id=upload).result is (
        Result.PUBLISHED
    )
    driver.flush()
    command = driver.gather()
    assert keys.blob_owner(upload) in [new.owner for new in command.slices]
    assert driver.do(command).result is Result.DONE
    blob = driver.state.blobs.get(keys.number(upload))
    assert blob is not None
    assert blob.cold == (2, 18)


# -- rows with gaps --------------------------------------------------------------------------------


def stored_chunks(*bodies: bytes) -> tuple[Driver, int]:
    """A store with a chunk for each body."""
    driver = Driver()
    driver.create()
    for body in bodies:
        driver.append(body)
        driver.flush()
    return driver, driver.stream().stream_id


def test_stored_chunks_are_read_up_to_the_first_gap() -> None:
    driver, stream_id = stored_chunks(*[b"x" * SEAL_BYTES] * 4)
    found = read_stored(driver.store, stream_id, 0, max_bytes=EVERYTHING)
    assert [chunk.start_record for chunk in found] == [0, 1, 2, 3]
    assert finder(stream_id, found)(stream_id, 2) is found[2]
    assert finder(stream_id, found)(stream_id, 9) is None
    driver.store.write([(keys.chunk_key(stream_id, 3), None)])
    found = read_stored(driver.store, stream_id, 0, max_bytes=EVERYTHING)
    assert [chunk.start_record for chunk in found] == [0, 1]
    assert read_stored(driver.store, stream_id, 2, max_bytes=EVERYTHING) == []
    assert read_stored(driver.store, stream_id, 4, max_bytes=EVERYTHING) == []


def test_slices_are_located_up_to_the_first_gap_and_the_first_unknown_pack() -> None:
    driver = Driver()
    driver.create()
    packs = []
    for body in (b"one", b"two", b"three"):
        driver.append(body)
        driver.flush_cold()
        packs.append(keys.pack_key(1, driver.packs))
    stream_id = driver.stream().stream_id

    def located() -> list[int]:
        return [one.ref.start_record for one in read_slices(driver.store, stream_id, 0)]

    assert located() == [0, 1, 2]
    names = {one.key for one in read_slices(driver.store, stream_id, 0)}
    assert len(names) == 3, "a slice is named by its pack and its place there"
    driver.store.write([(packs[2], None)])
    assert located() == [0, 1]
    driver.store.write([(keys.slice_key(stream_id, 2), None)])
    assert located() == [0]


def test_streams_that_a_command_will_ask_for_are_named_until_they_are_loaded() -> None:
    driver, _ = stored_chunks(b"one")
    driver.reopen()
    assert [*driver.state.missing([Delete(key("s"))])] == [keys.STREAM + key("s")]
    driver.state.install(keys.STREAM + key("s"), driver.store.rows[keys.STREAM + key("s")])
    assert [*driver.state.missing([Delete(key("s"))])] == []
