"""The key space of the state: one letter for the kind of row, then the fields that order it.

=====  ====================================  =========================================
``!``                                        the `Header`
``b``  bucket                                `Bucket`
``s``  stream key (bucket NUL name)          `Stream`
``d``  stream id, end record                 `Chunk`: found by seeking past a record number
``p``  stream id, producer id                `ProducerState`
``x``  time in ms, stream key                when to check whether a stream has expired
``B``  blob id, part number                  a part's bytes, unencoded
``r``  blob id                               `Blob`: what refers to it
``u``  upload id, which will be the blob's   `Upload`
``g``  stream or blob id                     all the rows below it await removal
``t``  stream id, record                     chunks that end at the record or before await removal
``c``  stream or blob id, end record         `ColdSlice`: where the records are in the cold store
``k``  term, number                          `Pack`: an object with slices
``h``  time in ms, owner key                 bytes not in the cold store, about since that time
``o``  stream id                             the record before which this node evicted its chunks
``n``  node id                               `WriteSession`: which packages of the node took effect
``a``  token id                              `Token`: access to the HTTP interface
``l``  ``b`` or ``i``, name                  `Limits` of a bucket or an identity
``w``  operation id                          `Operation` on the cluster
``q``  subscription's number                 `Subscription`
``e``  subscription's number, stream key     the subscription names the stream
``L``  subscription's number, stream key     the stream is linked to it: for listing only
``P``  subscription's number, stream key     the stream has records it did not acknowledge
``f``  subscription's number                 `EndedClaims` of a subscription that was deleted
``j``  number                                `SubscriptionKey` of the cluster
=====  ====================================  =========================================

Numbers are eight bytes, big endian, so that their order is the keys' order. Streams, blobs and
subscriptions get their ids from one counter, and no id is ever used again. An owner of bytes is a
stream, by its key, or a blob, by a key that no stream has.
"""

from __future__ import annotations

import re
from struct import Struct

HEADER = b"!"
BUCKET = b"b"
STREAM = b"s"
CHUNK = b"d"
PRODUCER = b"p"
EXPIRY = b"x"
BLOB_PART = b"B"
BLOB = b"r"
UPLOAD = b"u"
GARBAGE = b"g"
TRIM = b"t"
SLICE = b"c"
PACK = b"k"
HOT = b"h"
DROPPED = b"o"
SESSION = b"n"
TOKEN = b"a"
LIMITS = b"l"
OPERATION = b"w"
SUBSCRIPTION = b"q"
NAMED = b"e"
LINKED = b"L"
PENDING = b"P"
ENDED_CLAIMS = b"f"
SUBSCRIPTION_KEY = b"j"

_NUMBER = Struct(">Q")
_CHUNK = Struct(">cQQ")
_PAIR = Struct(">cQ")
_PLACE = Struct(">QQ")

# The last time that a row's key can name, in milliseconds since the epoch.
LAST_MS = 2**64 - 1
MAX_STREAM_KEY_BYTES = 1024
RESERVED_BUCKETS = frozenset(
    (
        b"_default",
        b"__ds",
        b"healthz",
        b"readyz",
        b"metrics",
        b"cluster",
        b"console",
        b"admin",
        b"auth",
    )
)

_BUCKET_ID = re.compile(rb"[a-z0-9_-]{4,64}")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f\\]")

number = _NUMBER.pack


def number_of(value: bytes) -> int:
    """The number in a value that `number` made."""
    (found,) = _NUMBER.unpack(value)
    return int(found)


def stream_key(bucket: bytes, name: bytes) -> bytes:
    """The machine's key of a stream. A bucket's name holds no NUL, so the pair is unique."""
    return bucket + b"\0" + name


def is_bucket_id(name: bytes) -> bool:
    """Whether the bucketed surface takes a bucket's name (extensions section 1.1)."""
    return name not in RESERVED_BUCKETS and _BUCKET_ID.fullmatch(name) is not None


def is_bucket_name(name: bytes) -> bool:
    """Whether a path on either surface can lead to a bucket with this name."""
    return is_stream_key(stream_key(name, b"x"))


def is_stream_key(key: bytes) -> bool:
    """Whether a path on either surface can lead to a stream with this key: a bucket and a name,
    in UTF-8, without control characters, backslashes, empty segments and segments of two dots."""
    bucket, nul, name = key.partition(b"\0")
    if not nul or len(key) > MAX_STREAM_KEY_BYTES or _CONTROL.search(bucket + name):
        return False
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    segments = name.split(b"/")
    return (
        bucket != b"__ds"
        and b"/" not in bucket
        and all(segment not in (b"", b"..") for segment in (bucket, *segments))
    )


def has_bucket(key: bytes) -> bool:
    """Whether `key` has the NUL between bucket and name; only such keys have a row."""
    return b"\0" in key


def bucket_of(key: bytes) -> bytes:
    """The bucket's name in a stream key."""
    return key[: key.index(b"\0")]


def name_of(key: bytes) -> bytes:
    """The part of a stream key that is local to its bucket."""
    return key[key.index(b"\0") + 1 :]


def stream_range(bucket: bytes, prefix: bytes, after: bytes) -> tuple[bytes, bytes]:
    """The half-open range of rows of a bucket's streams whose names begin with `prefix` and come
    after the name `after`; either may be empty."""
    base = STREAM + stream_key(bucket, b"")
    # No name holds a NUL, so nothing lies between a name and that name followed by one.
    start = max(prefix, after + b"\0") if after else prefix
    return base + start, _after_all_with(base + prefix)


def bucket_range(prefix: bytes, after: bytes) -> tuple[bytes, bytes]:
    """The half-open range of rows of buckets whose names begin with `prefix` and come after the
    name `after`; either may be empty."""
    start = max(prefix, after + b"\0") if after else prefix
    return BUCKET + start, _after_all_with(BUCKET + prefix)


def _after_all_with(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`, which has a byte other than 0xff."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def chunk_key(stream_id: int, end_record: int) -> bytes:
    """A chunk sorts by the record before which it ends, so one seek finds the chunk of a record."""
    return _CHUNK.pack(CHUNK, stream_id, end_record)


def producer_key(stream_id: int, producer_id: str) -> bytes:
    """The row of a producer's state on a stream."""
    return _PAIR.pack(PRODUCER, stream_id) + producer_id.encode()


def producer_in(row: bytes) -> str:
    """The producer id in a key that `producer_key` made."""
    return row[_PAIR.size :].decode()


def expiry_key(at_ms: int, key: bytes) -> bytes:
    """Expiries sort by time, so one range holds all that are due."""
    # An expiry may lie before 1970; it is due at once, whatever the year. One too late for a key is
    # as good as never.
    return _PAIR.pack(EXPIRY, min(max(0, at_ms), LAST_MS)) + key


def row_key(letter: bytes, stream_id: int, number: int) -> bytes:
    """The key of a chunk, a slice or a part, by its letter."""
    return _CHUNK.pack(letter, stream_id, number)


def dropped_key(stream_id: int) -> bytes:
    """The row that says which of a stream's chunks this node has evicted."""
    return _PAIR.pack(DROPPED, stream_id)


def part_key(blob_id: int, number: int) -> bytes:
    """The row of a part of a blob."""
    return _CHUNK.pack(BLOB_PART, blob_id, number)


def garbage_key(stream_id: int) -> bytes:
    """The row that marks a stream's chunks for removal."""
    return _PAIR.pack(GARBAGE, stream_id)


def trim_key(stream_id: int, record: int) -> bytes:
    """One key for each record: a note can be removed without removing a later one."""
    return _CHUNK.pack(TRIM, stream_id, record)


def trimmed_chunks(note: bytes) -> tuple[int, tuple[bytes, bytes]]:
    """The stream id in a trim's note, and the half-open range of the chunks to remove."""
    _, stream_id, record = _CHUNK.unpack(note)
    return stream_id, (chunk_key(stream_id, 0), chunk_key(stream_id, record + 1))


# A slice's key after its letter: stream id, end record; a pack's: term, number.
place = _PLACE.pack
place_in = _PLACE.unpack


def slice_key(stream_id: int, end_record: int) -> bytes:
    """A slice sorts by the record before which it ends, like a chunk."""
    return _CHUNK.pack(SLICE, stream_id, end_record)


def pack_key(term: int, number: int) -> bytes:
    """The row of a pack, by the term and number under which it was made."""
    return _CHUNK.pack(PACK, term, number)


def stream_id_in(key: bytes) -> int:
    """The id in the key of a chunk, a slice, a part."""
    _, found, _ = _CHUNK.unpack(key)
    return int(found)


def parse_number(key: bytes) -> int:
    """The number after the id: the end record, or a part's number."""
    _, _, found = _CHUNK.unpack(key)
    return int(found)


def blob_owner(blob_id: int) -> bytes:
    """The key of a blob among the owners of bytes: bucket names are not empty."""
    return b"\0" + number(blob_id)


def blob_in_owner(owner: bytes) -> bytes | None:
    """The key of a blob's row after its letter; None when the owner is a stream."""
    return owner[1:] if owner[:1] == b"\0" else None


def hot_key(at_ms: int, owner: bytes) -> bytes:
    """Owners of hot bytes sort by the time since which they have had some."""
    return _PAIR.pack(HOT, at_ms) + owner


def parse_hot(key: bytes) -> tuple[int, bytes]:
    """The time and the owner in a key that `hot_key` made."""
    _, at_ms = _PAIR.unpack(key[:9])
    return int(at_ms), key[9:]


def trimmed_slices(note: bytes) -> tuple[bytes, bytes]:
    """The half-open range of the slices in a trim's note."""
    _, stream_id, record = _CHUNK.unpack(note)
    return slice_key(stream_id, 0), slice_key(stream_id, record + 1)


def limits_key(kind: str, name: str) -> bytes:
    """The row of the limits of a bucket or an identity."""
    return LIMITS + kind[:1].encode() + name.encode()


def of_subscription(letter: bytes, number: int, key: bytes) -> bytes:
    """The row about a subscription and a stream: `NAMED`, `LINKED` or `PENDING`."""
    return _PAIR.pack(letter, number) + key


def stream_in(row: bytes) -> tuple[int, bytes]:
    """The number and the stream key in a key that `of_subscription` made."""
    _, found = _PAIR.unpack(row[: _PAIR.size])
    return int(found), row[_PAIR.size :]


def end_of(key: bytes) -> bytes:
    """The key after all keys with the letter of `key`."""
    return bytes([key[0] + 1])


def id_range(letter: bytes, stream_id: int) -> tuple[bytes, bytes]:
    """The half-open range of all keys of one stream id under `letter`."""
    return _PAIR.pack(letter, stream_id), _PAIR.pack(letter, stream_id + 1)


def expiry_range(until_ms: int) -> tuple[bytes, bytes]:
    """The half-open range of expiry keys due at `until_ms` or before."""
    return EXPIRY, _PAIR.pack(EXPIRY, until_ms + 1)


def key_in_expiry(expiry: bytes) -> bytes:
    """The stream key in a key that `expiry_key` made."""
    return expiry[9:]


def parse_id(key: bytes) -> int:
    """The id in a key that is only a letter and an id: of garbage, a blob or an upload."""
    _, found = _PAIR.unpack(key)
    return int(found)
