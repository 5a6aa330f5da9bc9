"""The machine's view of the cold store: which records are in which slice of which pack.

The machine never looks at the objects. It takes a slice only where its owner's cold records end, so
there is never a gap. A deposed leader's command carries a stale term and is refused.
"""

from __future__ import annotations

from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.commands import (
    AddLogKey,
    Archived,
    DropSlices,
    FlushCold,
    ForgetPacks,
    MovedSlice,
    MoveSlices,
    NewSlice,
    Outcome,
    Result,
    Scrubbed,
)
from streamd.streams.log_keys import MAX_LOG_KEYS, may_follow
from streamd.streams.model import Blob, ColdSlice, LogTree, Pack, Stream
from streamd.streams.state import State, storable


def flush(state: State, command: FlushCold, index: int, term: int) -> Outcome:
    """Take those slices of a new pack that still begin where their owners' cold records end."""
    if not _is_new(state, command, term):
        return Outcome(Result.STALE)
    live = sum(new.length for new in command.slices if _take(state, command, new))
    _put_pack(state, command, live, index)
    return Outcome(Result.DONE)


def move(state: State, command: MoveSlices, index: int, term: int) -> Outcome:
    """Refer to a new pack for the slices that are still where they were read."""
    if not _is_new(state, command, term):
        return Outcome(Result.STALE)
    live = sum(moved.length for moved in command.slices if _move(state, command, moved, index))
    _put_pack(state, command, live, index)
    return Outcome(Result.DONE)


def drop(state: State, command: DropSlices, index: int) -> Outcome:
    """Forget slices; a repetition does nothing."""
    for end_record in command.end_records:
        place = keys.place(command.stream_id, end_record)
        row = state.slices.get(place)
        if row is not None:
            state.slices.delete(place)
            _release(state, row, index)
    return Outcome(Result.DONE)


def forget(state: State, command: ForgetPacks) -> Outcome:
    """Forget packs to which no slice refers."""
    for term, number in command.packs:
        place = keys.place(term, number)
        pack = state.packs.get(place)
        if pack is not None and not pack.live:
            state.packs.delete(place)
    return Outcome(Result.DONE)


def archive(state: State, command: Archived, index: int, term: int) -> Outcome:
    """Note how far the log is archived: only forward, from its former end, by the entry's
    leader."""
    header = state.header
    forward = header.archived.index < command.position.index < index
    if command.term != term or command.previous != header.archived or not forward:
        return Outcome(Result.STALE)
    header.archived = command.position
    header.tree = command.tree or LogTree()
    return Outcome(Result.DONE)


def add_log_key(state: State, command: AddLogKey) -> Outcome:
    """Add a key for heads of the log."""
    header = state.header
    known = header.log_keys
    key = command.key
    if key in known:
        return Outcome(Result.DONE)
    if command.number != len(known) or not may_follow(known, key):
        return Outcome(Result.STALE)
    if len(known) >= MAX_LOG_KEYS:
        return Outcome(Result.TOO_MANY_LOG_KEYS)
    header.log_keys = (*known, key)
    return Outcome(Result.DONE)


def scrub(state: State, command: Scrubbed, term: int) -> Outcome:
    """Note the report of this entry's leader on the objects in the store."""
    if command.term != term:
        return Outcome(Result.STALE)
    state.header.scrub = command.scrub
    return Outcome(Result.DONE)


def _is_new(state: State, command: FlushCold | MoveSlices, term: int) -> bool:
    place = keys.place(command.term, command.number)
    return command.term == term and state.packs.get(place) is None


def _put_pack(state: State, command: FlushCold | MoveSlices, live: int, index: int) -> None:
    pack = Pack(command.name, command.size, storable(live))
    if not live:
        _die(state, pack, index)
    state.header.cold_bytes = storable(state.header.cold_bytes + live)
    state.packs.put(keys.place(command.term, command.number), pack)


def _take(state: State, command: FlushCold, new: NewSlice) -> bool:
    """Take a slice; False if its owner is gone, or its records are in another slice already."""
    owner, ref = _owner(state, new), new.ref
    if owner is None or owner.hot_at_ms is None or owner.cold != ref.start:
        return False
    if not (ref.start_record < ref.end_record <= owner.records and ref.end_byte <= owner.size):
        return False
    row = ColdSlice.of(ref, command.term, command.number)
    state.slices.put(keys.place(ref.stream_id, ref.end_record), row)
    flushed = ref.end_byte - ref.start_byte
    state.header.flushed_bytes = storable(state.header.flushed_bytes + flushed)
    state.cool(new.owner, owner, ref.end)
    if isinstance(owner, Stream):
        state.streams.put(new.owner, owner)
    else:
        state.blobs.put(keys.number(new.stream_id), owner)
    return True


def _owner(state: State, new: NewSlice) -> Stream | Blob | None:
    """The stream or blob whose records are in a slice, if it is still the same."""
    blob = keys.blob_in_owner(new.owner)
    if blob is not None:
        return state.blobs.get(blob) if blob == keys.number(new.stream_id) else None
    stream = state.streams.get(new.owner)
    return stream if stream is not None and stream.stream_id == new.stream_id else None


def _move(state: State, command: MoveSlices, moved: MovedSlice, index: int) -> bool:
    place = keys.place(moved.stream_id, moved.end_record)
    row = state.slices.get(place)
    if row is None or (row.term, row.number) != (moved.from_term, moved.from_number):
        return False
    _release(state, row, index)
    row = replace(
        row,
        term=command.term,
        number=command.number,
        offset=moved.offset,
        length=moved.length,
        crc=moved.crc,
    )
    state.slices.put(place, row)
    return True


def _release(state: State, row: ColdSlice, index: int) -> None:
    """Count one slice of a pack less."""
    place = keys.place(row.term, row.number)
    pack = state.packs.get(place)
    if pack is None:
        # A pack stays while it counts bytes of slices; those of a forged one need not have any.
        return
    pack.live = storable(pack.live - row.length)
    state.header.cold_bytes = storable(state.header.cold_bytes - row.length)
    if not pack.live:
        _die(state, pack, index)
    state.packs.put(place, pack)


def _die(state: State, pack: Pack, index: int) -> None:
    pack.dead_index, pack.dead_ms = index, state.header.log_ms
