"""Damaged states: manifests, pieces, and the rows in them."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec.structs import replace

from streamd.objectstore.checkpoints import make_manifest
from streamd.objectstore.names import PieceName, digest_of
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.model import Bucket, Extent, ProducerState, Settings, Stream
from streamd.streams.tokens import Token
from tests.spark.damages import Catalogue, Expected, Scene
from tests.spark.forging import Folder, Rows, count, edit_row, flipped, stream_row, with_bytes

STATES = Catalogue("States")


def _newest(folder: Folder) -> str:
    return folder.manifests()[-1]


# -- manifests --------------------------------------------------------------------------------


@STATES.add()
def byte_of_a_manifest(scene: Scene) -> Expected:
    """A bit of the newest manifest flips."""
    folder = scene.folder
    name = _newest(folder)
    folder.objects[name] = flipped(folder.objects[name], len(folder.objects[name]) - 20)
    return Expected("manifest_damaged", name)


@STATES.add()
def manifest_recomputed(scene: Scene) -> Expected:
    """The newest manifest has another log time, and its CRC-32C is recomputed."""
    folder = scene.folder
    name = _newest(folder)
    manifest = folder.manifest(name)
    of = replace(manifest.of, time_ms=manifest.of.time_ms + 1)
    folder.objects[name] = make_manifest(replace(manifest, of=of)).content
    return Expected("manifest_altered", name)


@STATES.add()
def stale_manifest(scene: Scene) -> Expected:
    """An older manifest is copied over the newest."""
    folder = scene.folder
    *_, older, newest = folder.manifests()
    folder.objects[newest] = folder.objects[older]
    return Expected("manifest_stale", newest)


@STATES.add(is_whole=True)
def manifest_of_another_log(scene: Scene) -> Expected:
    """The newest manifest names another chain, its name and checksums recomputed."""
    folder = scene.folder
    name = _newest(folder)
    manifest = folder.manifest(name)
    of = replace(manifest.of, chain=manifest.of.chain ^ 1)
    made = make_manifest(replace(manifest, of=of))
    return Expected("manifest_off_log", folder.replace(name, made.name, made.content))


@STATES.add()
def manifest_of_another_cluster(scene: Scene) -> Expected:
    """A manifest of another cluster is among the manifests."""
    name = scene.foreign.manifests()[-1]
    local, content = scene.foreign.local(name), scene.foreign.objects[name]
    return Expected("manifest_foreign", scene.folder.put(local, content))


@STATES.add()
def manifest_that_names_another_piece(scene: Scene) -> Expected:
    """The newest manifest names an older state's piece, which is there under the new name."""
    folder = scene.folder
    name = _newest(folder)
    older = folder.pieces(folder.manifests()[-2])[0]
    content, manifest = folder.objects[older], folder.manifest(name)
    for piece in folder.pieces(name):
        del folder.objects[piece]
    ref = folder.manifest(folder.manifests()[-2]).pieces[0]
    made = make_manifest(replace(manifest, pieces=[ref]))
    folder.replace(name, made.name, made.content)
    of = manifest.of
    piece = folder.put(
        str(PieceName(of.group_id, of.index, of.snapshot_id, 0, ref.digest)), content
    )
    return Expected("piece_of_other_state", piece)


# -- pieces -----------------------------------------------------------------------------------


@STATES.add()
def piece_deleted(scene: Scene) -> Expected:
    """A piece of the newest state is deleted."""
    folder = scene.folder
    [name] = folder.pieces(_newest(folder))
    del folder.objects[name]
    return Expected("piece_missing", name)


@STATES.add()
def byte_of_a_piece(scene: Scene) -> Expected:
    """A bit of a piece flips."""
    folder = scene.folder
    [name] = folder.pieces(_newest(folder))
    folder.objects[name] = flipped(folder.objects[name], len(folder.objects[name]) // 2)
    return Expected("piece_damaged", name)


@STATES.add()
def piece_truncated(scene: Scene) -> Expected:
    """The last third of a piece is missing."""
    folder = scene.folder
    [name] = folder.pieces(_newest(folder))
    folder.objects[name] = folder.objects[name][: len(folder.objects[name]) * 2 // 3]
    return Expected("piece_truncated", name)


@STATES.add()
def piece_recomputed(scene: Scene) -> Expected:
    """A piece holds other rows, and its checksums are recomputed."""
    folder = scene.folder
    name = _newest(folder)
    [piece] = folder.pieces(name)
    untouched = dict(folder.objects)
    folder.forge_state(lambda rows: edit_row(rows, stream_row("agents/late"), Stream, closed=False))
    [forged] = folder.pieces(_newest(folder))
    folder.objects = {**untouched, piece: folder.objects[forged]}
    return Expected("piece_altered", piece)


@STATES.add(is_whole=True)
def piece_nobody_names(scene: Scene) -> Expected:
    """A piece that no manifest names is there; it is harmless."""
    folder = scene.folder
    [name] = folder.pieces(_newest(folder))
    of = folder.manifest(_newest(folder)).of
    content = folder.objects[name]
    orphan = PieceName(of.group_id, of.index, of.snapshot_id ^ 1, 0, digest_of(content))
    return Expected("piece_orphan", folder.put(str(orphan), content))


@STATES.add(is_whole=True)
def stray_object(scene: Scene) -> Expected:
    """An object that no streamd writes is there; it is harmless."""
    return Expected(
        "object_unknown",
        scene.folder.put(f"packs/{scene.folder.group_id:08x}/notes.txt", b"do not delete"),
    )


# -- rows -------------------------------------------------------------------------------------


@STATES.add(is_whole=True)
def undecodable_row(scene: Scene) -> Expected:
    """A stream's row is garbage, all checksums recomputed."""

    def spoil(rows: Rows) -> None:
        rows[stream_row("agents/late")] = b"\x93\xc0\xc0"

    scene.folder.forge_state(spoil)
    return Expected("row_damaged")


@STATES.add(is_whole=True)
def lost_stream(scene: Scene) -> Expected:
    """The newest state has lost a stream, its totals recomputed."""
    folder = scene.folder
    stream = folder.stream("agents/late")

    def lose(rows: Rows) -> None:
        del rows[stream_row("agents/late")]
        _drop_hot(rows, stream, "agents/late")
        _drop_chunks(rows, stream.stream_id)
        count(rows, streams=-1, hot_bytes=-stream.size)
        streams = msgspec.msgpack.decode(rows[b"bagents"], type=Bucket).streams
        edit_row(rows, b"bagents", Bucket, streams=streams - 1)

    folder.forge_state(lose)
    return Expected("stream_lost", stream="agents/late")


def _drop_hot(rows: Rows, stream: Stream, name: str) -> None:
    assert stream.hot_at_ms is not None
    del rows[keys.hot_key(stream.hot_at_ms, stream_row(name)[1:])]


def _drop_chunks(rows: Rows, stream_id: int) -> None:
    start, stop = keys.id_range(keys.CHUNK, stream_id)
    for key in [key for key in rows if start <= key < stop]:
        del rows[key]


@STATES.add(is_whole=True)
def invented_stream(scene: Scene) -> Expected:
    """The newest state has a stream that nobody created, its totals recomputed."""
    folder = scene.folder
    like = folder.stream("agents/born-closed")

    def invent(rows: Rows) -> None:
        ghost = Stream(
            folder.header().next_stream_id,
            Settings("text/plain"),
            "text/plain",
            like.created_ms,
            like.created_ms,
            like.created_ms,
        )
        rows[stream_row("agents/ghost")] = msgspec.msgpack.encode(ghost)
        count(rows, streams=1)
        streams = msgspec.msgpack.decode(rows[b"bagents"], type=Bucket).streams
        edit_row(rows, b"bagents", Bucket, streams=streams + 1)

    folder.forge_state(invent)
    return Expected("stream_unknown", stream="agents/ghost")


@STATES.add(is_whole=True)
def shorter_tail(scene: Scene) -> Expected:
    """The newest state has lost a stream's last records, in the middle of an append."""
    folder = scene.folder
    stream = folder.stream("agents/events")

    def shorten(rows: Rows) -> None:
        key, chunk = _last_chunk(rows, stream.stream_id)
        assert chunk.appends[-3:] == [2, 3, 1]
        shorter = chunk.cut(chunk.start_record, chunk.end_record - 5)
        del rows[key]
        rows[keys.chunk_key(stream.stream_id, shorter.end_record)] = msgspec.msgpack.encode(shorter)
        row = stream_row("agents/events")
        edit_row(rows, row, Stream, records=shorter.end_record, size=shorter.end_byte)
        count(rows, hot_bytes=shorter.size - chunk.size)

    folder.forge_state(shorten)
    return Expected("tail_differs", stream="agents/events")


def _last_chunk(rows: Rows, stream_id: int) -> tuple[bytes, Chunk]:
    start, stop = keys.id_range(keys.CHUNK, stream_id)
    key = max(key for key in rows if start <= key < stop)
    return key, msgspec.msgpack.decode(rows[key], type=Chunk)


@STATES.add(is_whole=True)
def other_bytes(scene: Scene) -> Expected:
    """A record in the newest state has another byte, all checksums recomputed."""
    folder = scene.folder
    stream = folder.stream("agents/late")

    def change(rows: Rows) -> None:
        key, chunk = _last_chunk(rows, stream.stream_id)
        rows[key] = msgspec.msgpack.encode(with_bytes(chunk, flipped(chunk.data, chunk.size - 3)))

    folder.forge_state(change)
    return Expected("bytes_differ", stream="agents/late", record=stream.records - 1)


@STATES.add(is_whole=True)
def lost_close(scene: Scene) -> Expected:
    """A closed stream is open in the newest state."""
    row = stream_row("agents/late")
    scene.folder.forge_state(lambda rows: edit_row(rows, row, Stream, closed=False))
    return Expected("closed_differs", stream="agents/late")


@STATES.add(is_whole=True)
def producer_set_back(scene: Scene) -> Expected:
    """A producer's last number is a lower one in the newest state: it could append again."""
    folder = scene.folder
    key = keys.producer_key(folder.stream("agents/orders").stream_id, "van")
    folder.forge_state(lambda rows: edit_row(rows, key, ProducerState, seq=6))
    return Expected("producer_differs", stream="agents/orders")


@STATES.add(is_whole=True)
def lost_trim(scene: Scene) -> Expected:
    """A stream's snapshot, before which it was trimmed, is missing in the newest state."""
    row = stream_row("agents/story")
    scene.folder.forge_state(lambda rows: edit_row(rows, row, Stream, snapshot=None))
    return Expected("trim_lost", stream="agents/story")


@STATES.add(is_whole=True)
def moved_fork(scene: Scene) -> Expected:
    """A fork leaves its source a record earlier in the newest state."""
    folder = scene.folder
    [extent] = folder.stream("agents/fork").extents
    chunk = next(chunk for pack in folder.packs() for owner, chunk in folder.chunks(pack)
                 if owner == extent.stream_id and chunk.start_record == 0)  # fmt: skip
    last = chunk.lengths[extent.end_record - 1]
    moved = Extent(extent.stream_id, extent.end_record - 1, extent.end_byte - last)
    row = stream_row("agents/fork")
    folder.forge_state(lambda rows: edit_row(rows, row, Stream, extents=(moved,)))
    return Expected("fork_moved", stream="agents/fork")


@STATES.add(is_whole=True)
def lost_expiry(scene: Scene) -> Expected:
    """A stream's expiry is missing in the newest state."""
    folder = scene.folder
    stream = folder.stream("agents/until")
    row = stream_row("agents/until")

    def lose(rows: Rows) -> None:
        assert stream.sweep_at_ms is not None
        del rows[keys.expiry_key(stream.sweep_at_ms, row[1:])]
        edit_row(rows, row, Stream, expires_at=None, expires_at_ms=None, sweep_at_ms=None)

    folder.forge_state(lose)
    return Expected("expiry_lost", stream="agents/until")


@STATES.add(is_whole=True)
def other_settings(scene: Scene) -> Expected:
    """A stream's content type is another one in the newest state."""
    row = stream_row("agents/late")
    scene.folder.forge_state(lambda rows: edit_row(rows, row, Stream, content_type="text/html"))
    return Expected("settings_differ", stream="agents/late")


@STATES.add(is_whole=True)
def miscounted_bucket(scene: Scene) -> Expected:
    """A bucket counts a stream too many in the newest state: it could never be deleted."""
    scene.folder.forge_state(lambda rows: edit_row(rows, b"btools", Bucket, streams=1))
    return Expected("bucket_differs")


@STATES.add(is_whole=True)
def forged_token(scene: Scene) -> Expected:
    """The newest state has a token that nobody created: a cluster restored from it would admit
    strangers."""
    token = Token("ghost", sha256(b"made up").digest(), ("admin:*",), 1)

    def forge(rows: Rows) -> None:
        rows[keys.TOKEN + keys.number(7)] = msgspec.msgpack.encode(token)

    scene.folder.forge_state(forge)
    return Expected("token_differs")


@STATES.add(is_whole=True)
def wider_token(scene: Scene) -> Expected:
    """A token permits more in the newest state than it was created with."""
    key = _token_row(scene.folder, "ci")
    scene.folder.forge_state(lambda rows: edit_row(rows, key, Token, scopes=("admin:*",)))
    return Expected("token_differs")


@STATES.add(is_whole=True)
def lost_token(scene: Scene) -> Expected:
    """The newest state has lost a token: clients would be refused."""
    _lose_row(scene.folder, _token_row(scene.folder, "ops"))
    return Expected("token_differs")


def _lose_row(folder: Folder, key: bytes) -> None:
    def lose(rows: Rows) -> None:
        del rows[key]

    folder.forge_state(lose)


def _token_row(folder: Folder, name: str) -> bytes:
    [key] = [
        key
        for key, value in folder.state().items()
        if key.startswith(keys.TOKEN) and msgspec.msgpack.decode(value, type=Token).name == name
    ]
    return key


@STATES.add(is_whole=True)
def lifted_quota(scene: Scene) -> Expected:
    """A bucket has no quota in the newest state."""
    _lose_row(scene.folder, keys.limits_key("bucket", "small"))
    return Expected("limits_differ")


@STATES.add(is_whole=True)
def miscounted_state(scene: Scene) -> Expected:
    """The newest state counts fewer hot bytes than its streams have."""
    scene.folder.forge_state(lambda rows: count(rows, hot_bytes=-1000))
    return Expected("counts_differ")


@STATES.add(is_whole=True)
def chunk_under_another_key(scene: Scene) -> Expected:
    """The key of a chunk in the newest state says that it ends a record later."""
    folder = scene.folder
    stream_id = folder.stream("agents/chat").stream_id

    def move(rows: Rows) -> None:
        key, chunk = _last_chunk(rows, stream_id)
        rows[keys.chunk_key(stream_id, chunk.end_record + 1)] = rows.pop(key)

    manifest = folder.forge_state(move)
    return Expected("row_damaged", folder.pieces(manifest)[0])


@STATES.add(is_whole=True)
def row_of_a_stream_without_a_name(scene: Scene) -> Expected:
    """The newest state has a stream's row whose key has a bucket and no name."""
    folder = scene.folder

    def add(rows: Rows) -> None:
        rows[keys.STREAM + b"agents"] = rows[stream_row("agents/chat")]

    manifest = folder.forge_state(add)
    return Expected("row_damaged", folder.pieces(manifest)[0])
