"""The tokens of clients, the limits of a group and the operations on its cluster, as its log sets
them (docs/auth.md, docs/limits.md, docs/operations.md), compared with the rows of states.

Nothing else in the log depends on tokens and operations, so they need no scope. One task replays
a group's; it holds at most 10,000 tokens and limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from streamd_audit.arrow import map_in_arrow
from streamd_audit.commands import (
    CreateToken,
    Limits,
    RecordOperation,
    RenewIncarnations,
    RevokeToken,
    RotateToken,
    SetLimits,
)
from streamd_audit.errors import Damaged
from streamd_audit.findings import FINDINGS_DDL, finding, findings_batch
from streamd_audit.frames import rows_in
from streamd_audit.operations import Operation
from streamd_audit.replay import quotas, run
from streamd_audit.replay.ids import Place
from streamd_audit.replay.operations import Operations
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.results import (
    CREATED,
    DELETED,
    DONE,
    TOKEN_EXISTS,
    TOKEN_NOT_FOUND,
    TOO_MANY_TOKENS,
)
from streamd_audit.rows import Token, read_key, read_row

AccessCommand = (
    CreateToken | RotateToken | RevokeToken | SetLimits | RecordOperation | RenewIncarnations
)
AccessRow = Token | Limits | Operation

_MAX_TOKENS = 10_000
# Times further away are this one, the last that a row can hold.
_LAST_MS = 2**63 - 1
# After all rows.
_END = (2**63, 0, None, None, None, None)
_NAMES = "group", "index", "position", "op", "log_ms", "key", "body"
# Enough to tell two digests apart; a report needs no whole one.
_SHOWN_DIGITS = 16

decode_command = msgspec.msgpack.Decoder(AccessCommand).decode


class Difference(NamedTuple):
    """A fault by its name in `findings`."""

    kind: str
    expected: str
    found: str


class Access:
    """Follows all commands about tokens, limits and operations, in the order of the log."""

    def __init__(self) -> None:
        self._tokens: dict[int, Token] = {}
        self._ids: dict[str, int] = {}
        self._limits: dict[tuple[str, str], Limits] = {}
        self._operations = Operations()

    def begin(self, key: bytes, row: AccessRow) -> None:
        """Continue from a row of a state."""
        _, numbers, rest = read_key(key)
        if isinstance(row, Token):
            self._put(numbers[0], row)
        elif isinstance(row, Operation):
            self._operations.records[numbers[0]] = row
        else:
            self._limits[quotas.owner_of(rest)] = row

    def rows(self) -> dict[bytes, AccessRow]:
        """What a state has to hold, by the keys of its rows."""
        rows: dict[bytes, AccessRow] = {
            b"a" + token_id.to_bytes(8): token for token_id, token in self._tokens.items()
        }
        for (kind, name), limits in self._limits.items():
            rows[b"l" + kind[:1].encode() + name.encode()] = limits
        for operation_id, operation in self._operations.records.items():
            rows[b"w" + operation_id.to_bytes(8)] = operation
        return rows

    def apply(self, command: AccessCommand, log_ms: int) -> str:
        """The outcome of a command at a log time."""
        match command:
            case SetLimits():
                return quotas.set_limits(self._limits, command)
            case CreateToken():
                return self._create(command, log_ms)
            case RotateToken():
                return self._rotate(command, log_ms)
            case RecordOperation():
                return self._operations.record(command.operation)
            case RenewIncarnations():
                self._operations.abandon(log_ms)
                return DONE
        if command.token_id not in self._tokens:
            return TOKEN_NOT_FOUND
        self._remove(command.token_id)
        return DELETED

    def _create(self, command: CreateToken, log_ms: int) -> str:
        # One that has expired leaves its name when that is needed, and its place when that is.
        namesake = self._ids.get(command.name)
        if namesake is not None:
            self._end([namesake], log_ms)
        if len(self._tokens) >= _MAX_TOKENS:
            self._end([*self._tokens], log_ms)
        if command.name in self._ids or command.token_id in self._tokens:
            return TOKEN_EXISTS
        if len(self._tokens) >= _MAX_TOKENS:
            return TOO_MANY_TOKENS
        token = Token(
            command.name,
            command.digest,
            command.scopes,
            log_ms,
            None if command.ttl_ms is None else _after(log_ms, command.ttl_ms),
            public_key=command.public_key,
        )
        self._put(command.token_id, token)
        return CREATED

    def _rotate(self, command: RotateToken, log_ms: int) -> str:
        known = self._tokens.get(command.token_id)
        if known is None or _has_expired(known, log_ms):
            return TOKEN_NOT_FOUND
        if command.digest == known.digest:
            return DONE  # sent again
        self._tokens[command.token_id] = replace(
            known,
            digest=command.digest,
            expires_ms=(
                known.expires_ms if command.ttl_ms is None else _after(log_ms, command.ttl_ms)
            ),
            former_digest=known.digest,
            former_until_ms=_after(log_ms, command.overlap_ms),
            public_key=command.public_key,
            former_public_key=known.public_key,
        )
        return DONE

    def _put(self, token_id: int, token: Token) -> None:
        self._tokens[token_id] = token
        self._ids[token.name] = token_id

    def _remove(self, token_id: int) -> None:
        del self._ids[self._tokens.pop(token_id).name]

    def _end(self, ids: Iterable[int], log_ms: int) -> None:
        for token_id in ids:
            if _has_expired(self._tokens[token_id], log_ms):
                self._remove(token_id)


def _has_expired(token: Token, log_ms: int) -> bool:
    return token.expires_ms is not None and token.expires_ms <= log_ms


def _after(log_ms: int, ms: int) -> int:
    return min(log_ms + ms, _LAST_MS)


# -- comparing -------------------------------------------------------------------------------------


_DIFFERS = {
    "token": "token_differs",
    "limits": "limits_differ",
    "operation": "operation_differs",
}


def differences(held: Access, said: Mapping[bytes, AccessRow]) -> Iterator[Difference]:
    """Where the rows of a state, by their keys, differ from the log's result."""
    by_log = held.rows()
    for key in sorted(by_log.keys() | said.keys()):
        row, other = by_log.get(key), said.get(key)
        if row == other:
            continue
        kind, numbers, rest = read_key(key)
        if kind == "token":
            name = f"token {numbers[0]:016x}"
        elif kind == "operation":
            name = f"operation {numbers[0]}"
        else:
            name = f"limits of {' '.join(quotas.owner_of(rest))}"
        yield Difference(
            _DIFFERS[kind],
            f"{name}: {_told(row, other)}",
            _told(other, row),
        )


def _told(row: AccessRow | None, other: AccessRow | None) -> str:
    """The fields in which a row differs from the other one; all that are set if there is none."""
    if row is None:
        return "none"
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    if other is None:
        chosen = [name for name, value in values.items() if value not in (None, b"")]
    else:
        chosen = [name for name, value in values.items() if value != getattr(other, name)]
    return ", ".join(f"{name} {_shown(values[name])}" for name in chosen) or "no limit"


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        text = value.hex()
        shown = text if len(text) <= _SHOWN_DIGITS else f"{text[:_SHOWN_DIGITS]}…"
        return shown or "none"
    if isinstance(value, list):
        return " ".join(value) or "none"
    return "none" if value is None else str(value)


def findings_of(
    commands: DataFrame, states: DataFrame, plans: Mapping[int, Plan], cluster: str
) -> DataFrame:
    """Findings (`FINDINGS_DDL`) where the states that the plans compare with differ.

    `commands` are those of `Replayed`; `states` are rows of the states that the plans name
    (`spans.EVENTS_DDL`).
    """
    places = {group: plan.places for group, plan in plans.items()}
    nothing = f.lit(None)
    of_log = commands.where(f.col("group").isin(*places)).select(
        "group", "index", "position", f.lit(run.COMMAND).alias("op"), "log_ms",
        nothing.cast("binary").alias("key"), "body",
    )  # fmt: skip
    of_states = states.where(f.col("kind").isin(*_DIFFERS)).select(
        "group", "index", "position", "op", nothing.cast("long").alias("log_ms"), "key",
        f.col("value").alias("body"),
    )  # fmt: skip
    ordered = of_log.unionByName(of_states)
    ordered = ordered.repartition("group").sortWithinPartitions("group", "index", "position")

    def findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield findings_batch(
            finding(
                found.kind,
                cluster=cluster,
                group=group,
                index=index,
                expected=found.expected,
                found=found.found,
            )
            for group, rows in groupby(rows_in(batches, *_NAMES), key=itemgetter(0))
            for index, found in of_group((row[1:] for row in rows), places[group])
        )

    return map_in_arrow(ordered.select(*_NAMES), findings, FINDINGS_DDL)


def of_group(
    rows: Iterable[tuple[Any, ...]], states: Sequence[Place]
) -> Iterator[tuple[int, Difference]]:
    """Where the states at these places differ, by their indexes; `rows` are commands and rows of
    states in order: index, position, op, log time, key, body."""
    held = Access()
    said: dict[bytes, AccessRow] = {}
    left = deque(states)
    is_changed = False
    for index, position, op, log_ms, key, body in chain(rows, [_END]):
        while left and left[0] < (index, position):
            state = left.popleft()
            if is_changed:
                yield from ((state[0], found) for found in differences(held, said))
            is_changed = False
        if op == run.COMMAND:
            # A stamp that no clock gives is reported with its entry.
            held.apply(decode_command(body), _LAST_MS if log_ms is None else log_ms)
            is_changed = True
            continue
        is_changed = is_changed or op != run.BEFORE
        if op == run.GONE:
            said.pop(key, None)
        elif op is not None:
            try:
                value = read_row(key, body).value
            except Damaged:
                continue  # reported as `row_damaged`
            assert isinstance(value, AccessRow)
            said[key] = value
            if op == run.BEFORE:
                held.begin(key, value)
