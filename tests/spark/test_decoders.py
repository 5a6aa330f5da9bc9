"""The audit's decoders and the server's read the same objects alike, and find the same damage."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from struct import pack
from typing import Any, get_args

import msgspec
import pytest

from streamd.objectstore.checkpoints import read_manifest, read_piece
from streamd.storage.raft_snapshots import whole_rows
from streamd.streams import codec, model
from streamd.streams.chunks import Chunk
from streamd.streams.content import UNDECODABLE
from streamd.streams.fencing.fences import EndedClaims
from streamd.streams.limits import Limits
from streamd.streams.operations.model import Operation
from streamd.streams.sessions import WriteSession
from streamd.streams.subscriptions.model import Subscription
from streamd.streams.subscriptions.signing_keys import SubscriptionKey
from streamd.streams.tokens import Token
from streamd_audit import checkpoints, commands, names, rows, segments
from streamd_audit.errors import TOO_SHORT, Damaged
from streamd_audit.framing import check_digest
from streamd_audit.store import open_store
from tests.objectstore.damage import cut, flipped
from tests.releases.record import HERE
from tests.spark.both_decoders import FORMATS, audit_object, judged, plain, server_object
from tests.spark.damages import Damage, Scene
from tests.spark.every_command import COMMANDS, every_command
from tests.spark.test_damages import each_damage

RELEASES = sorted({file.name.partition(".")[0] for file in HERE.glob("*.json")})
each_format = pytest.mark.parametrize("kind", FORMATS)


# -- examples ------------------------------------------------------------------------------------


@each_format
def test_both_decoders_read_the_examples(kind: str) -> None:
    name, content = FORMATS[kind].example()
    assert audit_object(name, content) == server_object(name, content)


@each_format
def test_both_notice_every_flipped_bit(kind: str) -> None:
    example, server, audit = FORMATS[kind]
    for damaged in flipped(example().content):
        assert judged(server, damaged) is None
        assert judged(audit, damaged) is None


@each_format
def test_both_notice_every_cut(kind: str) -> None:
    example, server, audit = FORMATS[kind]
    for damaged in cut(example().content):
        assert judged(server, damaged) is None
        assert judged(audit, damaged) is None


# -- a bucket that a server wrote, whole and damaged ---------------------------------------------


def both_judge(objects: dict[str, bytes]) -> Iterator[tuple[str, Any, Any]]:
    """The name of each object and what the two read, None where they find damage."""
    for full_name, content in objects.items():
        name = names.split(full_name)[1]
        others = names.CHECKS, names.FENCE, names.HEADS
        if name.startswith(others) or names.parse(name) is None:
            continue
        yield full_name, judged(server_object, name, content), judged(audit_object, name, content)


def test_both_read_everything_that_a_server_wrote(scene: Scene) -> None:
    kinds = set()
    for name, by_server, by_audit in both_judge(scene.folder.objects):
        assert by_server is not None
        assert by_audit == by_server, name
        kinds.add(name.rpartition(".")[2])
    assert kinds == set(FORMATS)


@each_damage
def test_both_judge_damaged_objects_alike(scene: Scene, damage: Damage) -> None:
    before = dict(scene.folder.objects)
    damage.on(scene)
    after = scene.folder.objects
    changed = {name: content for name, content in after.items() if before.get(name) != content}
    for name, by_server, by_audit in both_judge(changed):
        # An object under another's name is not damage by itself: the server finds it when it reads
        # the log or the state.
        assert by_audit == by_server or by_audit is None, name


# -- a store that an earlier release wrote -------------------------------------------------------


@pytest.fixture(scope="module", params=RELEASES)
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cold store that a server of a release left."""
    directory = tmp_path_factory.mktemp("release")
    with tarfile.open(HERE / f"{request.param}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "data" / "cold"


def objects_in(at: Path) -> dict[str, bytes]:
    """All objects by their names below the cluster's folder."""
    store = open_store(str(at))
    found = {}
    for page in store.list():
        for name, size in page:
            found[names.split(name)[1]] = content = store.read(name)
            assert len(content) == size
            check_digest(name, content)
    return found


def test_a_released_store_is_read_alike(released: Path) -> None:
    entries = 0
    for name, content in objects_in(released).items():
        expected = server_object(name, content)
        assert audit_object(name, content) == expected
        if not name.endswith(".segment"):
            continue
        for index, _, kind, _, _, payload in expected[0]:
            entries += 1
            if kind == segments.COMMANDS:
                batch = commands.decode_batch(payload, index)
                assert plain(batch) == plain(codec.decode_batch(payload))
            elif kind == segments.CONFIGURATION:
                assert commands.decode_configuration(payload).members()
    assert entries > 100


def test_the_state_of_a_released_store_is_read_alike(released: Path) -> None:
    found = objects_in(released)
    newest = max(name for name in found if name.endswith(".manifest"))
    manifest = found[newest]
    expected, audited = read_manifest(manifest), checkpoints.read_manifest(manifest)
    stored = [found[audited.piece_name(number)] for number in range(len(audited.pieces))]
    pieces = [read_piece(expected, number, content) for number, content in enumerate(stored)]
    in_rows = [(key, bytes(value)) for key, value in rows.split_rows(pieces)]
    assert in_rows == [row[:2] for row in whole_rows(b"".join(pieces))]
    decoded = [rows.read_row(key, value) for key, value in in_rows]
    for row, (key, value) in zip(decoded, in_rows, strict=True):
        assert as_server_reads(key, value) == (None if row.value is None else plain(row.value))
    kinds = {row.kind for row in decoded}
    assert {"header", "bucket", "stream", "producer", "slice", "pack"} <= kinds
    (header,) = [row.value for row in decoded if isinstance(row.value, rows.Header)]
    assert header.applied_index == audited.of.index


# -- commands and rows ---------------------------------------------------------------------------


def test_every_kind_of_command_is_read_alike() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(commands.Command)}
    assert tags == {command.__struct_config__.tag for command in COMMANDS}
    for payload in every_command():
        assert plain(commands.decode_batch(payload)) == plain(codec.decode_batch(payload))
        assert commands.stamp_of(payload) == codec.time_of_batch(payload)


def test_a_head_is_the_command_without_its_data() -> None:
    for command in commands.decode_batch(every_command()[1]).commands:
        kind, before = commands.kind_of(command), plain(command)
        head = msgspec.msgpack.decode(commands.head_of(command), type=commands.Command)
        after = plain(head)
        assert commands.kind_of(head) == kind
        data = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        assert all(after[at] == b"" for at in data)
        assert bool(data) == (kind in ("create", "append", "store-part"))


def test_commands_damaged_by_chance_are_judged_alike() -> None:
    random = Random(11)
    accepted = 0
    for payload in every_command() * 40:
        damaged = spoiled(payload, random)
        try:
            expected = plain(codec.decode_batch(damaged))
        except UNDECODABLE:
            expected = None
        found = judged(lambda raw: plain(commands.decode_batch(raw)), damaged)
        assert found == expected, damaged.hex()
        accepted += expected is not None
    assert accepted > 50


ROWS = {
    b"!": model.Header,
    b"b": model.Bucket,
    b"s": model.Stream,
    b"d": Chunk,
    b"p": model.ProducerState,
    b"r": model.Blob,
    b"u": model.Upload,
    b"c": model.ColdSlice,
    b"k": model.Pack,
    b"n": WriteSession,
    b"a": Token,
    b"l": Limits,
    b"w": Operation,
    b"q": Subscription,
    b"f": EndedClaims,
    b"j": SubscriptionKey,
}


def fields_of(kind: msgspec.inspect.Type) -> Any:
    """How many fields arrays have, at all depths; their names and the kinds of values are the
    reader's own matter."""
    match kind:
        case (
            msgspec.inspect.StructType(fields=fields)
            | msgspec.inspect.NamedTupleType(fields=fields)
        ):
            return [fields_of(field.type) for field in fields]
        case msgspec.inspect.UnionType(types=types):
            return fields_of(
                next(one for one in types if type(one) is not msgspec.inspect.NoneType)
            )
        case (
            msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item)
        ):
            return "many", fields_of(item)
        case msgspec.inspect.DictType(value_type=value):
            return "by key", fields_of(value)
        case msgspec.inspect.TupleType(item_types=items):
            return [fields_of(item) for item in items]
    return None


@pytest.mark.parametrize("letter", [letter for letter in ROWS if letter != b"d"])
def test_rows_have_the_fields_that_the_server_writes(letter: bytes) -> None:
    """Those of values within values, too: an outcome is part of a session's row."""
    decoder: Any = rows._SHAPES[letter[0]].decode
    reads = decoder._decode.__self__.type
    written, read = (fields_of(msgspec.inspect.type_info(one)) for one in (ROWS[letter], reads))
    assert read == written


def as_server_reads(key: bytes, value: bytes) -> Any:
    shape = ROWS.get(key[:1])
    return None if shape is None else plain(msgspec.msgpack.decode(value, type=shape))


def test_rows_damaged_by_chance_are_judged_alike(scene: Scene) -> None:
    random = Random(12)
    state = {key: value for key, value in scene.folder.state().items() if key[:1] in ROWS}
    accepted = 0
    for key, value in state.items():
        for _ in range(20):
            damaged = spoiled(value, random)
            try:
                expected = as_server_reads(key, damaged)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                expected = None
            found = judged(lambda key, raw: plain(rows.read_row(key, raw).value), key, damaged)
            # The server finds lengths that do not fit a chunk's data only when it reads the
            # records.
            assert found == expected or (found is None and key[:1] == b"d"), (key, damaged.hex())
            accepted += found is not None
    assert accepted > 50


def test_rows_may_continue_in_the_next_piece() -> None:
    whole = b"".join(
        pack(">II", len(key), len(value)) + key + value
        for key, value in ((b"a", b"1" * 40), (b"bb", b""), (b"c", b"3" * 7))
    )
    for size in (1, 7, 9, 50, 1000):
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        found = [(key, bytes(value)) for key, value in rows.split_rows(parts)]
        assert found == [(b"a", b"1" * 40), (b"bb", b""), (b"c", b"3" * 7)]
    with pytest.raises(Damaged, match=TOO_SHORT):
        list(rows.split_rows([whole[:-1]]))


def spoiled(content: bytes, random: Random) -> bytes:
    """With a few bytes changed, left out or put in."""
    found = bytearray(content)
    for _ in range(random.randint(1, 2)):
        at = random.randrange(len(found) + 1)
        match random.randrange(4):
            case 0:
                found[at:at] = random.choice([b"\0", b"\xc0", b"\x90", b"\xff", b"\xdd\xff\xff"])
            case 1:
                del found[at : at + random.randint(1, 3)]
            case _ if at < len(found):
                found[at] = random.choice([found[at] ^ 1 << random.randrange(8), 0xC0, 0xFF, 0x7F])
    return bytes(found)
