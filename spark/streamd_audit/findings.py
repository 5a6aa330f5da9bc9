"""What an audit can find: its kinds, one finding, and findings as rows.

Each kind is named for what is wrong with the data, not for the check that noticed it, so that one
fault has one name whichever job finds it first. The names are stable: scripts may depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import NamedTuple

import pyarrow as pa

FATAL, ERROR, WARNING, INFO = "fatal", "error", "warning", "info"
# Worst first. A store with nothing but `INFO` is clean.
SEVERITIES = (FATAL, ERROR, WARNING, INFO)


class Kind(NamedTuple):
    """`title` says in one line what is wrong, `cause` what usually causes it."""

    severity: str
    title: str
    cause: str


_STORE = "the store lost or damaged it, or somebody changed it in the store"
_REMOVED = "somebody deleted it, or the store lost it"
_FORGED = "somebody wrote it and recomputed the checksums"
_WRITER = "a fault of the server that wrote it, or somebody changed the store"
_MACHINE = "a fault of the server's state machine, or entries of the log were changed"

KINDS: dict[str, Kind] = {
    # Packs.
    "pack_missing": Kind(FATAL, "a pack that a state refers to is missing", _REMOVED),
    "pack_truncated": Kind(FATAL, "a pack does not have its original length", _STORE),
    "pack_damaged": Kind(ERROR, "bytes of a pack outside its slices have changed", _STORE),
    "pack_footer_damaged": Kind(ERROR, "a pack's footer is damaged", _STORE),
    "pack_altered": Kind(
        FATAL, "a pack's checksums hold, but it does not have the digest in its name", _FORGED
    ),
    "pack_replaced": Kind(
        FATAL, "a whole pack has the name of another", "objects were copied over each other"
    ),
    "pack_orphan": Kind(
        INFO, "a pack that no state refers to", "a flush was interrupted; it is harmless"
    ),
    "states_missing": Kind(
        ERROR,
        "there are packs, and no state that refers to them",
        "somebody deleted the states, or the store lost them",
    ),
    # Slices.
    "slice_damaged": Kind(FATAL, "a slice's bytes do not have its CRC-32C", _STORE),
    "slice_altered": Kind(
        FATAL, "a slice's CRC-32C holds, but its records are not those referred to", _FORGED
    ),
    "slices_swapped": Kind(
        FATAL, "two slices of a pack have changed places", "the pack was assembled wrongly"
    ),
    "slice_misplaced": Kind(
        FATAL, "a slice's records are right, but have another place in the stream", _WRITER
    ),
    "slice_gap": Kind(FATAL, "some records that should be in packs are in no slice", _WRITER),
    "slice_overlap": Kind(ERROR, "two slices hold the same records of a stream", _WRITER),
    "slice_contradicts_log": Kind(
        FATAL, "a slice holds other bytes than the log says were appended there", _FORGED
    ),
    "copies_differ": Kind(
        FATAL, "two states or packs hold different bytes of a record from before the log", _FORGED
    ),
    "removal_wrong": Kind(
        FATAL, "a state would have records removed that one of its streams needs", _MACHINE
    ),
    "slice_cuts_append": Kind(
        ERROR, "a slice groups records into other appends than the log does", _WRITER
    ),
    "slice_not_in_log": Kind(FATAL, "a slice holds records that the log never appended", _WRITER),
    # Segments of the log.
    "segment_truncated": Kind(FATAL, "a segment of the log is cut short", _STORE),
    "segment_damaged": Kind(FATAL, "a segment of the log does not have its CRC-32C", _STORE),
    "segment_altered": Kind(
        FATAL, "a segment's CRC-32C holds, but it does not have the digest in its name", _FORGED
    ),
    "segment_misnamed": Kind(
        ERROR,
        "a segment has the name of other entries",
        "objects were copied over each other, or renamed",
    ),
    "segment_foreign": Kind(
        FATAL, "a segment belongs to another cluster", "objects of two clusters were mixed"
    ),
    "segments_disagree": Kind(
        FATAL, "two segments hold different entries with the same index", _FORGED
    ),
    # The log.
    "log_gap": Kind(FATAL, "some entries of the log are in no segment", _REMOVED),
    "log_end_missing": Kind(
        FATAL, "the log ends before the last entry recorded as archived", _REMOVED
    ),
    "history_rolled_back": Kind(
        FATAL,
        "the log ends before an entry that an earlier audit judged, or a kept head has",
        "somebody set the store back to an earlier time",
    ),
    "history_changed": Kind(
        FATAL, "the log is not the one that an earlier audit judged, or a kept head is of", _FORGED
    ),
    "tree_differs": Kind(
        FATAL, "a segment or a state has another hash tree than the log's entries", _FORGED
    ),
    "head_differs": Kind(FATAL, "a signed head in the store is not of this log", _FORGED),
    "head_damaged": Kind(
        ERROR, "a head in the store is damaged, or no key that is trusted has signed it", _FORGED
    ),
    "chain_broken": Kind(FATAL, "an entry does not continue the chain of checksums", _FORGED),
    "entry_damaged": Kind(FATAL, "an entry's commands cannot be decoded", _WRITER),
    "index_gap": Kind(FATAL, "indexes do not rise by one", _WRITER),
    "term_wrong": Kind(FATAL, "a term does not fit its place in the log", _WRITER),
    "leaders_disagree": Kind(
        FATAL, "two leaders wrote in one term", "a fault of the election, or a forged entry"
    ),
    "stamp_back": Kind(ERROR, "log time goes back", "a leader's stamp was changed"),
    "append_after_close": Kind(FATAL, "records were appended to a closed stream", _MACHINE),
    "producer_gap": Kind(ERROR, "a producer's sequence skips numbers", _MACHINE),
    "producer_repeated": Kind(ERROR, "a producer's append took effect twice", _MACHINE),
    "seq_back": Kind(ERROR, "Stream-Seq does not rise", _MACHINE),
    "refused_wrongly": Kind(
        ERROR, "a command was refused although it had to take effect", _MACHINE
    ),
    "taken_wrongly": Kind(ERROR, "a command took effect although it had to be refused", _MACHINE),
    # States: manifests, their pieces, and what is in them.
    "manifest_truncated": Kind(FATAL, "a state's manifest is cut short", _STORE),
    "manifest_damaged": Kind(FATAL, "a state's manifest is damaged", _STORE),
    "manifest_altered": Kind(
        FATAL, "a manifest's CRC-32C holds, but it does not have the digest in its name", _FORGED
    ),
    "manifest_stale": Kind(
        FATAL,
        "a manifest describes another state than its name says",
        "an older object was copied over it",
    ),
    "manifest_foreign": Kind(
        FATAL, "a manifest belongs to another cluster", "objects of two clusters were mixed"
    ),
    "manifest_off_log": Kind(
        FATAL, "a state belongs to another log than the archived one", _FORGED
    ),
    "piece_missing": Kind(FATAL, "a piece that a manifest names is missing", _REMOVED),
    "piece_truncated": Kind(FATAL, "a piece of a state is cut short", _STORE),
    "piece_damaged": Kind(FATAL, "a piece of a state does not have its CRC-32C", _STORE),
    "piece_altered": Kind(
        FATAL, "a piece's CRC-32C holds, but it does not have the digest in its name", _FORGED
    ),
    "piece_of_other_state": Kind(FATAL, "a manifest names the piece of another state", _FORGED),
    "piece_orphan": Kind(
        INFO, "a piece that no manifest names", "writing a state was interrupted; it is harmless"
    ),
    "row_damaged": Kind(
        FATAL, "a row of a state cannot be decoded, or contradicts its key", _WRITER
    ),
    "state_stale": Kind(FATAL, "a state has the rows of another entry than its name says", _FORGED),
    "header_differs": Kind(FATAL, "a state's header differs from the log's", _MACHINE),
    "due_differs": Kind(
        ERROR, "the rows of what is due differ from the streams and blobs of the state", _MACHINE
    ),
    "blob_differs": Kind(
        ERROR, "a snapshot's bytes are counted otherwise than streams refer to them", _MACHINE
    ),
    "session_differs": Kind(
        ERROR, "which requests of a node took effect differs from the log's", _MACHINE
    ),
    "stream_lost": Kind(FATAL, "the log has a stream that the state lacks", _MACHINE),
    "stream_unknown": Kind(FATAL, "the state has a stream that the log lacks", _MACHINE),
    "tail_differs": Kind(FATAL, "a stream's tail differs from the log's", _MACHINE),
    "bytes_differ": Kind(FATAL, "a stream's bytes differ from the log's", _MACHINE),
    "closed_differs": Kind(ERROR, "whether a stream is closed differs from the log", _MACHINE),
    "producer_differs": Kind(
        ERROR, "a producer's epoch or sequence differs from the log", _MACHINE
    ),
    "trim_lost": Kind(ERROR, "a stream's snapshot or trim differs from the log's", _MACHINE),
    "fork_moved": Kind(
        FATAL, "a fork leaves its source at another place than the log says", _MACHINE
    ),
    "expiry_lost": Kind(ERROR, "a stream's expiry differs from the log's", _MACHINE),
    "cold_differs": Kind(
        ERROR, "how much of a stream is in packs differs from the log's", _MACHINE
    ),
    "settings_differ": Kind(ERROR, "a stream's settings differ from the log's", _MACHINE),
    "bucket_differs": Kind(ERROR, "a bucket differs from the log's", _MACHINE),
    "token_differs": Kind(ERROR, "a client's token differs from the log's", _MACHINE),
    "limits_differ": Kind(
        ERROR, "the limits of a bucket or an identity differ from the log's", _MACHINE
    ),
    "operation_differs": Kind(
        ERROR, "the record of an operation on the cluster differs from the log's", _MACHINE
    ),
    "subscription_differs": Kind(
        ERROR, "a subscription, or a stream's link to one, differs from the log's", _MACHINE
    ),
    "counts_differ": Kind(WARNING, "totals in a state are not the sums of its rows", _MACHINE),
    # Pointers to the archive's end.
    "end_damaged": Kind(WARNING, "a pointer to the archive's end is damaged", _STORE),
    "end_truncated": Kind(WARNING, "a pointer to the archive's end is cut short", _STORE),
    "end_altered": Kind(WARNING, "a pointer to the archive's end does not match its name", _FORGED),
    "end_off_log": Kind(
        FATAL, "the archive's end names an entry that the log does not have", _FORGED
    ),
    # A live cluster.
    "live_lost": Kind(FATAL, "the cluster does not serve a stream that the log has", _MACHINE),
    "live_differs": Kind(FATAL, "the cluster serves other bytes than the log", _MACHINE),
    "live_tail_differs": Kind(FATAL, "the cluster's tail is before the archived one", _MACHINE),
    "live_state_differs": Kind(
        ERROR, "the cluster reports another state of a stream than the log", _MACHINE
    ),
    # Anything.
    "object_unreadable": Kind(
        FATAL, "the store cannot serve an object, but serves others", "a damaged disk"
    ),
    "format_unknown": Kind(
        ERROR, "an object has a later format than this audit knows", "use the audit of that release"
    ),
    "object_odd": Kind(
        WARNING,
        "something that no object is, or a name that none has: a pipe, a loop of links",
        "somebody put it there",
    ),
    "object_unknown": Kind(INFO, "an object that does not belong here", "somebody put it there"),
    "not_audited": Kind(
        WARNING,
        "something could not be judged",
        "what it must be compared with is missing or damaged",
    ),
}


@dataclass(frozen=True)
class Finding:
    """One fault, at its place. The fields are the columns of the Parquet files, in order.

    `stream` is ``BUCKET/NAME``; `offset` a token ``RECORD_BYTE`` or a record's number; `object` the
    name below the store's prefix, with the cluster's folder; `expected` and `found` are short texts
    for people. What does not apply is None. Make one with `finding`.
    """

    severity: str
    kind: str
    cluster: str | None
    group: int | None
    stream: str | None
    stream_id: int | None
    offset: str | None
    index: int | None
    object: str | None
    expected: str | None
    found: str | None
    cause: str


_INTEGERS = {"group": pa.int32(), "stream_id": pa.int64(), "index": pa.int64()}
FINDINGS_ARROW = pa.schema(
    [(field.name, _INTEGERS.get(field.name, pa.string())) for field in fields(Finding)]
)
_SQL = {pa.string(): "string", pa.int32(): "int", pa.int64(): "long"}
FINDINGS_DDL = ", ".join(f"`{field.name}` {_SQL[field.type]}" for field in FINDINGS_ARROW)


def finding(
    kind: str,
    *,
    cluster: str | None = None,
    group: int | None = None,
    stream: str | None = None,
    stream_id: int | None = None,
    offset: str | int | tuple[int, int] | None = None,
    index: int | None = None,
    object: str | None = None,  # noqa: A002 - the column's name
    expected: object = None,
    found: object = None,
    cause: str | None = None,
) -> Finding:
    """A finding with the severity and the usual cause of its kind.

    An `offset` of (record, byte) becomes the token that readers know.
    """
    known = KINDS[kind]
    if isinstance(offset, tuple):
        offset = f"{offset[0]:016d}_{offset[1]:016d}"
    return Finding(
        known.severity,
        kind,
        cluster,
        group,
        stream,
        stream_id,
        None if offset is None else str(offset),
        index,
        object,
        None if expected is None else str(expected),
        None if found is None else str(found),
        known.cause if cause is None else cause,
    )


# Kinds of damage (`errors`) that have their own names as findings.
_DAMAGES = {
    "too_short": "truncated",
    "too_long": "truncated",
    "name_digest": "altered",
    "other_cluster": "foreign",
    "footer_crc": "footer_damaged",
    "missing": "missing",
}
_DAMAGES_OF = {
    ("segment", "misnamed"): "segment_misnamed",
    ("segment", "chain"): "chain_broken",
    ("manifest", "misnamed"): "manifest_stale",
    ("piece", "misnamed"): "piece_of_other_state",
    ("pack", "misnamed"): "pack_replaced",
    ("pack", "slice_crc"): "slice_damaged",
    ("pack", "wrong_slice"): "slice_altered",
    ("end", "misnamed"): "end_altered",
    ("end", "other_cluster"): "end_altered",
}


def damage_kind(what: str, damage: str) -> str:
    """The kind of finding for damage of an object, by `errors.Damaged.kind`; `what` is ``pack``,
    ``segment``, ``manifest``, ``piece``, ``end`` or ``row``."""
    if damage in ("unknown_version", "unknown_field"):
        return "format_unknown"
    if damage == "unreadable":
        return "object_unreadable"
    kind = _DAMAGES_OF.get((what, damage)) or f"{what}_{_DAMAGES.get(damage, 'damaged')}"
    return kind if kind in KINDS else f"{what}_damaged"


def stream_name(bucket: bytes | str, name: bytes | str) -> str:
    """A stream's name as in findings: ``BUCKET/NAME``."""
    parts = [part.decode(errors="replace") if isinstance(part, bytes) else part
             for part in (bucket, name)]  # fmt: skip
    return "/".join(parts)


def findings_batch(findings: Iterable[Finding]) -> pa.RecordBatch:
    """Findings as a batch, for `map_in_arrow` with `FINDINGS_DDL`."""
    rows = [astuple(found) for found in findings]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(FINDINGS_ARROW)
    arrays = [
        pa.array(column, type=field.type)
        for column, field in zip(columns, FINDINGS_ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=FINDINGS_ARROW)
