"""The rows of a state (docs/formats.md, "Rows of a state")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from struct import Struct
from typing import Any

import msgspec

from streamd_audit import strict
from streamd_audit.commands import (
    Limits,
    LogKey,
    LogTree,
    Place,
    Position,
    Producer,
    Scrub,
    Settings,
)
from streamd_audit.errors import BAD_ROW, TOO_LARGE, TOO_SHORT, UNKNOWN_FIELD, Damaged
from streamd_audit.framing import Buffer, Decoder
from streamd_audit.operations import Operation
from streamd_audit.packs import Chunk, read_chunk
from streamd_audit.subscriptions import (
    EndedClaims,
    Key,
    Link,
    StreamFence,
    Subscription,
    WakeReport,
)

# A row holds at most a request's body, or records that one chunk gathered.
MAX_ROW_BYTES = 1024 * 1024 * 1024
MAX_KEY_BYTES = 64 * 1024

_SIZES = Struct(">II")
_START: Position = (0, 0)


class Header(msgspec.Struct, array_like=True):
    """The totals of a state; bytes count what is in the cold store or is not."""

    applied_index: int = 0
    applied_term: int = 0
    log_ms: int = 0
    next_stream_id: int = 1
    streams: int = 0
    configuration: bytes = b""
    hot_bytes: int = 0
    flushed_bytes: int = 0
    cold_bytes: int = 0
    archived: Place = Place()
    incarnation_base: int = 0
    scrub: Scrub = Scrub()
    counts: bool = False
    tree: LogTree = LogTree()
    log_keys: list[LogKey] = []
    features: int = 0
    pattern_version: int = 0
    generation_floor: int = 0


def first_header(group: int) -> Header:
    """The header of a group's state before its first entry."""
    if group == 0:
        return Header()
    number = int.from_bytes(sha256(b"/%d" % group).digest()[:8])
    return Header(incarnation_base=(1 << 62) + number % (1 << 62))


class Bucket(msgspec.Struct, array_like=True, gc=False):
    created_ms: int
    streams: int = 0
    hidden: int = 0
    size: int = 0
    counted: int = 0


class Extent(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A fork reads the records of `stream_id` before `end_record`, up to `end_byte`."""

    stream_id: int
    end_record: int
    end_byte: int


class Snapshot(msgspec.Struct, array_like=True, gc=False):
    """The snapshot published for everything before (record, byte); `digest` is SHA-256."""

    record: int
    byte: int
    blob_id: int
    size: int
    content_type: str
    digest: bytes


class Stream(msgspec.Struct, array_like=True, gc=False):
    """`records` and `size` are the tail, inherited records included."""

    stream_id: int
    settings: Settings
    content_type: str
    created_ms: int
    last_write_ms: int
    touched_ms: int
    ttl_ms: int | None = None
    expires_at: str | None = None
    expires_at_ms: int | None = None
    records: int = 0
    size: int = 0
    closed: bool = False
    closed_by: Producer | None = None
    last_seq: str | None = None
    extents: list[Extent] = []
    forks: int = 0
    deleted: bool = False
    sweep_at_ms: int | None = None
    snapshot: Snapshot | None = None
    cold: Position = _START
    hot_at_ms: int | None = None
    kept_from: int | None = None
    producers: int = 0
    links: tuple[Link, ...] = ()
    watched: int = 0
    fence: StreamFence = StreamFence()

    @property
    def earliest(self) -> Position:
        """The first record that can be read: those before it were trimmed."""
        return _START if self.snapshot is None else (self.snapshot.record, self.snapshot.byte)


class ProducerState(msgspec.Struct, array_like=True, gc=False):
    """A producer's last accepted request, the tail that it led to, and its log time; 0 if the
    stream does not count the producer."""

    epoch: int
    seq: int
    record: int
    byte: int
    touched_ms: int = 0
    is_bound: bool = False


class Blob(msgspec.Struct, array_like=True, gc=False):
    references: int
    records: int = 0
    size: int = 0
    cold: Position = _START
    hot_at_ms: int | None = None


class Upload(msgspec.Struct, array_like=True, gc=False):
    stream_id: int
    touched_ms: int
    parts: int = 0
    size: int = 0


class ColdSlice(msgspec.Struct, array_like=True, gc=False):
    """A slice of pack (term, number); the key says whose it is and where it ends."""

    start_record: int
    start_byte: int
    end_byte: int
    term: int
    number: int
    offset: int
    length: int
    crc: int
    digest: bytes


class Pack(msgspec.Struct, array_like=True, gc=False):
    """`name` begins with the folder of the cluster that wrote it; `live` are the bytes of slices
    that are referred to."""

    name: str
    size: int
    live: int
    dead_index: int = 0
    dead_ms: int = 0


class Outcome(msgspec.Struct, array_like=True, gc=False):
    """The outcome of a command; `result` is a word, such as ``appended``."""

    result: str
    tail: Position = _START
    closed: bool = False
    content_type: str = ""
    epoch: int = 0
    seq: int = 0
    incarnation: int = 0
    earliest: Position = _START
    upload_id: int = 0
    wake: WakeReport | None = None


class Session(msgspec.Struct, array_like=True, gc=False):
    """A node's session, and the outcomes of its packages from `lowest` on, by their numbers."""

    session_id: int
    nonce: int
    lowest: int = 0
    outcomes: dict[int, list[Outcome]] = {}


class Token(msgspec.Struct, array_like=True, gc=False):
    """A client's token; digests are SHA-256."""

    name: str
    digest: bytes
    scopes: list[str]
    created_ms: int
    expires_ms: int | None = None
    former_digest: bytes = b""
    former_until_ms: int = 0
    public_key: bytes = b""
    former_public_key: bytes = b""


class _Shape:
    """A kind of row: the numbers at the beginning of its key, what follows them, its value."""

    def __init__(self, kind: str, numbers: str, rest: str, value: type[Any] | None) -> None:
        self.kind = kind
        self.numbers = tuple(numbers.split())
        self.rest = rest
        self.unpack = Struct(f">{len(self.numbers)}Q").unpack_from
        self.size = 1 + 8 * len(self.numbers)
        self.decode = None if value is None else Decoder[Any](value, f"a row of a {kind}")


_SHAPES = {
    ord(letter): shape
    for letter, shape in {
        "!": _Shape("header", "", "", Header),
        "b": _Shape("bucket", "", "bucket", Bucket),
        "s": _Shape("stream", "", "stream", Stream),
        "d": _Shape("chunk", "stream_id end_record", "", None),
        "p": _Shape("producer", "stream_id", "producer_id", ProducerState),
        "x": _Shape("expiry", "at_ms", "stream", None),
        "B": _Shape("part", "blob_id number", "", None),
        "r": _Shape("blob", "blob_id", "", Blob),
        "u": _Shape("upload", "blob_id", "", Upload),
        "g": _Shape("garbage", "stream_id", "", None),
        "t": _Shape("trim", "stream_id end_record", "", None),
        "c": _Shape("slice", "stream_id end_record", "", ColdSlice),
        "k": _Shape("pack", "term number", "", Pack),
        "h": _Shape("hot", "at_ms", "owner", None),
        "o": _Shape("dropped", "stream_id", "", None),
        "n": _Shape("session", "node_id", "", Session),
        "a": _Shape("token", "token_id", "", Token),
        "l": _Shape("limits", "", "limited", Limits),
        "w": _Shape("operation", "operation_id", "", Operation),
        "q": _Shape("subscription", "number", "", Subscription),
        "e": _Shape("named", "number", "stream", None),
        "L": _Shape("linked", "number", "stream", None),
        "P": _Shape("pending", "number", "stream", None),
        "f": _Shape("ended claims", "number", "", EndedClaims),
        "j": _Shape("subscription key", "number", "", Key),
    }.items()
}
KINDS = {chr(letter): shape.kind for letter, shape in _SHAPES.items()}

Value = (
    Header
    | Bucket
    | Stream
    | Chunk
    | ProducerState
    | Blob
    | Upload
    | ColdSlice
    | Pack
    | Session
    | Token
    | Limits
    | Operation
    | Subscription
    | EndedClaims
    | Key
)


class Row(msgspec.Struct, gc=False):
    """A row of a state.

    `numbers` are those in the key, in order: of a chunk, a trim and a slice the stream's id and
    the end record, of a part the blob's id and its number, of a pack term and number, of the others
    the one there is. `rest` is what follows them: a bucket, a stream's key, a producer's id, an
    owner. `value` is None where there is only the key, and for a part, whose bytes are its value.
    """

    kind: str
    numbers: tuple[int, ...]
    rest: bytes
    value: Value | None


def split_rows(parts: Iterable[Buffer]) -> Iterator[tuple[bytes, memoryview]]:
    """Key and value of each row in the rows of a checkpoint's pieces, in order.

    A row may continue in the next piece. Raises `Damaged`.
    """
    waiting: list[Buffer] = []
    held = 0
    wanted = _SIZES.size
    for part in parts:
        waiting.append(part)
        held += len(part)
        if held < wanted:
            continue
        data = memoryview(waiting[0] if len(waiting) == 1 else b"".join(waiting))
        at, wanted = 0, _SIZES.size
        while held - at >= _SIZES.size:
            key_size, value_size = _SIZES.unpack_from(data, at)
            if key_size > MAX_KEY_BYTES or value_size > MAX_ROW_BYTES:
                raise Damaged(TOO_LARGE, f"a row says it has {key_size} and {value_size} bytes")
            value_at = at + _SIZES.size + key_size
            end = value_at + value_size
            if end > held:
                wanted = end - at
                break
            yield bytes(data[at + _SIZES.size : value_at]), data[value_at:end]
            at = end
        waiting, held = [data[at:]], held - at
    if held:
        raise Damaged(TOO_SHORT, "the last piece ends inside a row")


def read_key(key: bytes) -> tuple[str, tuple[int, ...], bytes]:
    """A row's kind, numbers and rest, as `Row` has them. Raises `Damaged`."""
    shape = _shape(key)
    return shape.kind, shape.unpack(key, 1), key[shape.size :]


def read_row(key: bytes, value: Buffer) -> Row:
    """A row with its value decoded. Raises `Damaged`."""
    shape = _shape(key)
    found: Value | None = None
    if shape.decode is not None:
        found = shape.decode(value)
    elif shape.kind == "chunk":
        found = read_chunk(value)
    return Row(shape.kind, shape.unpack(key, 1), key[shape.size :], found)


def check_row_known(row: Row, value: Buffer) -> None:
    """Raises `Damaged` if the value of a row that was read says anything that is not known."""
    if row.value is not None:
        strict.check_known(row.value, value, f"the row of a {row.kind}")
    elif row.kind != "part" and len(value):
        raise Damaged(UNKNOWN_FIELD, f"the row of a {row.kind} has {len(value)} bytes")


def _shape(key: bytes) -> _Shape:
    shape = _SHAPES.get(key[0]) if key else None
    if shape is None:
        raise Damaged(UNKNOWN_FIELD, f"a key begins with {key[:1]!r}: a kind that is not known")
    if len(key) < shape.size or (len(key) > shape.size and not shape.rest):
        raise Damaged(BAD_ROW, f"the key of a {shape.kind} has {len(key)} bytes")
    return shape
