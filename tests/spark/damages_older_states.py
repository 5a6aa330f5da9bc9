"""Damaged states that are not the newest, and rows that only the audit of all rows shows."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from streamd.streams import keys
from streamd.streams.model import Blob, Bucket, ColdSlice, Header, Pack, ProducerState, Stream
from streamd.streams.sessions import WriteSession
from streamd.streams.tokens import Token
from tests.spark.damages import Catalogue, Expected, Scene
from tests.spark.forging import Folder, Rows, count, edit_row, stream_row

OLDER_STATES = Catalogue("Older states, and rows beside those of streams")


@OLDER_STATES.add(is_whole=True)
def token_in_an_older_state(scene: Scene) -> Expected:
    """An older state has a token that nobody created; a restore to it would admit strangers."""
    folder = scene.folder
    token = Token("ghost", sha256(b"made up").digest(), ("admin:*",), 1)

    def forge(rows: Rows) -> None:
        rows[keys.TOKEN + keys.number(7)] = msgspec.msgpack.encode(token)

    folder.forge_state(forge, -2)
    return Expected("token_differs", index=folder.index_of(-2))


@OLDER_STATES.add(is_whole=True)
def stream_lost_in_an_older_state(scene: Scene) -> Expected:
    """An older state has lost a stream, its totals recomputed; later ones have it."""
    folder = scene.folder
    row = stream_row("agents/done")

    def lose(rows: Rows) -> None:
        stream = msgspec.msgpack.decode(rows.pop(row), type=Stream)
        assert stream.hot_at_ms is None
        count(rows, streams=-1)
        streams = msgspec.msgpack.decode(rows[b"bagents"], type=Bucket).streams
        edit_row(rows, b"bagents", Bucket, streams=streams - 1)

    folder.forge_state(lose, -2)
    return Expected("stream_lost", stream="agents/done", index=folder.index_of(-2))


@OLDER_STATES.add(is_whole=True)
def producer_set_back_in_an_older_state(scene: Scene) -> Expected:
    """A producer's last number is a lower one in an older state."""
    folder = scene.folder
    key = keys.producer_key(folder.stream("agents/orders").stream_id, "shop")
    folder.forge_state(lambda rows: edit_row(rows, key, ProducerState, seq=1), -2)
    return Expected("producer_differs", stream="agents/orders", index=folder.index_of(-2))


@OLDER_STATES.add(is_whole=True)
def slice_lost_in_an_older_state(scene: Scene) -> Expected:
    """An older state has lost a slice, its totals recomputed."""
    folder = scene.folder
    _lose_slice(folder, folder.stream("agents/chat").stream_id, -2)
    return Expected("slice_gap", stream="agents/chat", index=folder.index_of(-2))


def _lose_slice(folder: Folder, owner_id: int, number: int) -> None:
    def lose(rows: Rows) -> None:
        start, stop = keys.id_range(keys.SLICE, owner_id)
        key = min(key for key in rows if start <= key < stop)
        row = msgspec.msgpack.decode(rows.pop(key), type=ColdSlice)
        pack = keys.pack_key(row.term, row.number)
        live = msgspec.msgpack.decode(rows[pack], type=Pack).live - row.length
        dead = {} if live else {"dead_index": folder.index_of(number), "dead_ms": 1}
        edit_row(rows, pack, Pack, live=live, **dead)
        count(rows, cold_bytes=-row.length)

    folder.forge_state(lose, number)


@OLDER_STATES.add(is_whole=True)
def bucket_miscounted_in_an_older_state(scene: Scene) -> Expected:
    """A bucket counts a stream too many in an older state."""
    folder = scene.folder
    folder.forge_state(lambda rows: edit_row(rows, b"btools", Bucket, streams=1), -2)
    return Expected("bucket_differs", index=folder.index_of(-2))


@OLDER_STATES.add(is_whole=True)
def older_rows_in_the_newest_state(scene: Scene) -> Expected:
    """The newest state has the rows of an older one, under a manifest of its own."""
    folder = scene.folder
    older = folder.rows(folder.manifests()[-2])

    def replace(rows: Rows) -> None:
        rows.clear()
        rows.update(older)

    return Expected("state_stale", folder.forge_state(replace), index=folder.index_of(-1))


@OLDER_STATES.add(is_whole=True)
def next_id_set_back(scene: Scene) -> Expected:
    """The newest state would give ids a second time."""
    return _header(scene, next_stream_id=3)


@OLDER_STATES.add(is_whole=True)
def incarnation_base_changed(scene: Scene) -> Expected:
    """The newest state has another incarnation base: conditions would hold that must not."""
    return _header(scene, incarnation_base=12345)


@OLDER_STATES.add(is_whole=True)
def log_time_moved(scene: Scene) -> Expected:
    """The newest state's clock is eleven days ahead: streams would expire."""
    folder = scene.folder
    return _header(scene, log_ms=folder.header().log_ms + 1_000_000_000)


@OLDER_STATES.add(is_whole=True)
def configuration_changed(scene: Scene) -> Expected:
    """The newest state names other voters."""
    return _header(scene, configuration=msgspec.msgpack.encode([[1, 2, 3], [], [], []]))


@OLDER_STATES.add(is_whole=True)
def archive_set_back(scene: Scene) -> Expected:
    """The newest state says that less of the log is archived."""
    archived = msgspec.structs.replace(scene.folder.header().archived, index=1)
    return _header(scene, archived=archived)


@OLDER_STATES.add(is_whole=True)
def scrub_forged(scene: Scene) -> Expected:
    """The newest state says that all objects were read and found whole."""
    scrub = msgspec.structs.replace(scene.folder.header().scrub, passes=9)
    return _header(scene, scrub=scrub)


def _header(scene: Scene, **fields: object) -> Expected:
    folder = scene.folder
    name = folder.forge_state(lambda rows: edit_row(rows, keys.HEADER, Header, **fields))
    return Expected("header_differs", name, index=folder.index_of(-1))


@OLDER_STATES.add(is_whole=True)
def expiry_row_lost(scene: Scene) -> Expected:
    """A stream that expires is not due for a check in the newest state: it would stay for ever."""
    folder = scene.folder
    stream = folder.stream("agents/until")
    assert stream.sweep_at_ms is not None
    key = keys.expiry_key(stream.sweep_at_ms, stream_row("agents/until")[1:])

    def lose(rows: Rows) -> None:
        del rows[key]

    folder.forge_state(lose)
    return Expected("due_differs", index=folder.index_of(-1))


@OLDER_STATES.add(is_whole=True)
def hot_row_lost(scene: Scene) -> Expected:
    """A stream's bytes are not due for a pack in the newest state: they would stay on the disk."""
    folder = scene.folder
    stream = folder.stream("agents/late")
    assert stream.hot_at_ms is not None
    key = keys.hot_key(stream.hot_at_ms, stream_row("agents/late")[1:])

    def lose(rows: Rows) -> None:
        del rows[key]

    folder.forge_state(lose)
    return Expected("due_differs", index=folder.index_of(-1))


@OLDER_STATES.add(is_whole=True)
def blob_miscounted(scene: Scene) -> Expected:
    """A snapshot's bytes have a reference too few in the newest state: a fork's end would remove
    them."""
    folder = scene.folder
    snapshot = folder.stream("agents/story").snapshot
    assert snapshot is not None
    key = keys.BLOB + keys.number(snapshot.blob_id)
    folder.forge_state(lambda rows: edit_row(rows, key, Blob, references=2))
    return Expected("blob_differs", index=folder.index_of(-1))


@OLDER_STATES.add(is_whole=True)
def bucket_size_forged(scene: Scene) -> Expected:
    """A bucket with a quota keeps fewer bytes in the newest state than its streams."""
    folder = scene.folder
    folder.forge_state(lambda rows: edit_row(rows, b"bsmall", Bucket, size=1))
    return Expected("bucket_differs", index=folder.index_of(-1))


@OLDER_STATES.add(is_whole=True)
def invented_session(scene: Scene) -> Expected:
    """The newest state has a session of a node that opened none."""
    folder = scene.folder
    row = msgspec.msgpack.encode(WriteSession(5, 77))

    def invent(rows: Rows) -> None:
        rows[keys.SESSION + keys.number(9)] = row

    folder.forge_state(invent)
    return Expected("session_differs", index=folder.index_of(-1))


@OLDER_STATES.add(is_whole=True)
def pack_row_names_another_pack(scene: Scene) -> Expected:
    """The row of a dead pack names a living one, whose bytes would be deleted."""
    folder = scene.folder
    victim = folder.packs()[0]

    def forge(rows: Rows) -> None:
        dead = Pack(victim, len(folder.objects[victim]), 0, 1, 1)
        rows[keys.pack_key(1, 1)] = msgspec.msgpack.encode(dead)

    folder.forge_state(forge)
    return Expected("row_damaged", index=folder.index_of(-1))


@OLDER_STATES.add(is_whole=True)
def living_stream_awaits_removal(scene: Scene) -> Expected:
    """An older state would have a living stream's records and producers removed."""
    folder = scene.folder
    key = keys.garbage_key(folder.stream("agents/orders").stream_id)

    def forge(rows: Rows) -> None:
        rows[key] = b""

    folder.forge_state(forge, -2)
    return Expected("removal_wrong", stream="agents/orders", index=folder.index_of(-2))


@OLDER_STATES.add(is_whole=True)
def records_await_removal(scene: Scene) -> Expected:
    """The newest state would have records removed that were not trimmed."""
    folder = scene.folder
    key = keys.trim_key(folder.stream("agents/chat").stream_id, 5)

    def forge(rows: Rows) -> None:
        rows[key] = b""

    folder.forge_state(forge)
    return Expected("removal_wrong", stream="agents/chat", index=folder.index_of(-1))


@OLDER_STATES.add(is_whole=True)
def slice_of_a_snapshot_lost(scene: Scene) -> Expected:
    """The newest state has lost the bytes of a snapshot, its totals recomputed."""
    folder = scene.folder
    snapshot = folder.stream("agents/story").snapshot
    assert snapshot is not None
    _lose_slice(folder, snapshot.blob_id, -1)
    return Expected("slice_gap", index=folder.index_of(-1))
