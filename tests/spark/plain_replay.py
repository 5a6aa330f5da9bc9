"""The audit's replay of a log without Spark: rows in lists, joins in dictionaries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from pyspark.sql import DataFrame, SparkSession

from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import Command
from streamd.streams.keys import CHUNK, HEADER, LIMITS, OPERATION, TOKEN
from streamd.streams.sessions import PackageStamp
from streamd_audit import commands as audited
from streamd_audit.replay import access, buckets, heads, run, scan, sessions, stated
from streamd_audit.replay.components import components
from streamd_audit.replay.globs import Patterns, path_of
from streamd_audit.replay.ids import Place
from streamd_audit.replay.plan import Plan, state_position
from streamd_audit.replay.quotas import History
from streamd_audit.rows import Header, read_row
from streamd_audit.segments import COMMANDS
from streamd_audit.subscriptions import PutSubscription

MAX_ROUNDS = 50
_OF_ACCESS = TOKEN, LIMITS, OPERATION


@dataclass
class LogEntry:
    index: int
    term: int
    now_ms: int
    commands: Sequence[Command]
    packages: Sequence[PackageStamp] = ()


@dataclass
class StateRows:
    """A state as of entry `index`: rows by their whole keys."""

    index: int
    rows: dict[bytes, bytes]


@dataclass
class Replayed:
    """`results` by place of the command, and `of_access` those about tokens and limits; tables as
    tuples; `differences` of tokens and limits."""

    results: dict[Place, str]
    numbers: dict[Place, int]
    tables: dict[int, list[tuple]] = field(default_factory=dict)
    rounds: int = 0
    of_access: dict[Place, str] = field(default_factory=dict)
    differences: list[access.Difference] = field(default_factory=list)


def plain_replay(
    log: Iterable[LogEntry],
    before: StateRows | None = None,
    *after: StateRows,
    first_number: int = 1,
    base: int = 0,
) -> Replayed:
    rows, results, events, edges, uploads = [], {}, [], [], {}
    bases = [(0, base)]
    changes = []
    nodes: dict[int, sessions.Node] = defaultdict(sessions.Node)
    cuttings = []
    patterns: Patterns[bool] = Patterns()
    admissions = []
    for entry in log:
        payload = encode_batch(Batch(entry.now_ms, list(entry.commands), list(entry.packages)))
        batch = audited.decode_batch(payload)
        skipped = _skipped(nodes, entry, batch, results)
        for position, command in enumerate(batch.commands):
            if position in skipped:
                continue
            size = len(getattr(command, "data", b""))
            records = len(getattr(command, "lengths", ()))
            digests = bytes(16) * records
            audited.head_of(command)  # which takes the records away
            place = entry.index, position
            if isinstance(command, audited.SetLimits):
                changes.append((place, command))
            if isinstance(command, access.AccessCommand):
                admissions.append((place, command, entry.now_ms))
            if isinstance(command, audited.RenewIncarnations):
                bases.append((entry.index, command.base))
            if isinstance(command, audited.CreateBucket):
                events.append((command.name, *place, buckets.BUCKET_CREATED, entry.now_ms))
            if isinstance(command, audited.DeleteBucket):
                events.append((command.name, *place, buckets.BUCKET_DELETED, entry.now_ms))
            if isinstance(command, audited.Create) and command.settings.fork is not None:
                edges.append((command.key, command.settings.fork.source))
            edges += [(key, heads.OF_SUBSCRIPTIONS) for key in heads.keys_in(command)]
            if isinstance(command, PutSubscription):
                patterns.add(command.config.pattern, True)
            if isinstance(command, audited.PublishSnapshot) and command.upload_id:
                uploads.setdefault(command.upload_id, []).append(command.key)
            rest = (place, entry.term, entry.now_ms, records, size, digests)
            for sub, (key, piece) in enumerate(heads.cut(command)):
                cuttings.append((key, sub, piece, *rest))
    for keys in uploads.values():
        edges += [(keys[0], key) for key in keys]
    for key, *rest in cuttings:
        if isinstance(key, int):
            if key not in uploads:
                continue
            key = uploads[key][0]
        rows.append((key, *rest))
    of_state, initial = _state_rows(before, after, edges, patterns)
    history = History(*_limits_in(before), changes)
    edges += _shared({row[0] for row in rows + of_state}, history, patterns)
    scope_of = _scopes([row[0] for row in rows] + [row[0] for row in of_state], edges)
    table = [(scope_of[row[0]], *row[1:]) for row in of_state]
    for key, sub, command, place, term, now_ms, records, size, digests in rows:
        body = heads.pack([(*place, sub, term, now_ms, command, records, size, digests)])
        table.append((scope_of[key], 0, run.COMMAND, *place, body))
    table.sort(key=lambda row: (row[0], row[3], row[4]))
    ways = _ways(before, after, bases, first_number, history)
    replayed = _settle(table, results, events, initial, first_number, ways)
    _replay_access(replayed, admissions, before, after)
    return replayed


def _ways(before, after, bases, first_number, history) -> tuple:
    """What a `run.Replay` is told."""
    headers = [read_row(HEADER, state.rows[HEADER]).value for state in after]
    began = Header() if before is None else read_row(HEADER, before.rows[HEADER]).value
    return (
        _places(after), tuple(bases), first_number, history,
        (began.pattern_version, began.generation_floor),
        [header.pattern_version for header in headers],
    )  # fmt: skip


def _shared(keys, history, patterns) -> Iterator[tuple[bytes, bytes]]:
    """What ties streams to the quotas of their bucket, and to the subscriptions."""
    for key in keys:
        bucket = key.partition(b"\0")[0]
        if history.limited & {bucket, b"*"}:
            yield key, bucket + b"\0"
        if patterns.matching(path_of(key)):
            yield key, heads.OF_SUBSCRIPTIONS


def _replay_access(replayed, commands, before, after) -> None:
    """Replay the commands about tokens, limits and operations, and compare the states with them."""
    places = _places(after)
    held = access.Access()
    for row in _access_rows(before).items():
        held.begin(*row)
    for place, command, now_ms in commands:
        replayed.of_access[place] = held.apply(command, now_ms)
    replayed.differences = [
        found for _, found in access.of_group(_access_events(commands, before, after), places)
    ]


def _places(states: Sequence[StateRows]) -> tuple[Place, ...]:
    return Plan(None, tuple(state.index for state in states)).places


def _access_events(commands, before, after) -> list:
    found = [
        (*place, run.COMMAND, now_ms, None, msgspec.msgpack.encode(command))
        for place, command, now_ms in commands
    ]
    for op, index, position, key, value in state_events(before, after):
        if key.startswith(_OF_ACCESS):
            found.append((index, position, op, None, key, value))
    return sorted(found, key=lambda row: row[:2])


def state_events(before: StateRows | None, after: Sequence[StateRows]) -> Iterator[tuple]:
    """The rows of states as a replay meets them: op, index, position, key, value."""
    known = {} if before is None else before.rows
    for key, value in known.items():
        assert before is not None
        yield run.BEFORE, before.index, -1, key, value
    for number, state in enumerate(after):
        place = state.index, state_position(number, is_there=False)
        for key, value in known.items():
            if state.rows.get(key) != value:
                yield run.GONE, *place, key, value
        place = state.index, state_position(number, is_there=True)
        for key, value in state.rows.items():
            if known.get(key) != value:
                yield run.AFTER, *place, key, value
        known = state.rows


def _access_rows(state: StateRows | None) -> dict:
    """The rows of tokens, limits and operations that a state has."""
    rows = {} if state is None else state.rows
    return {
        key: read_row(key, value).value for key, value in rows.items() if key.startswith(_OF_ACCESS)
    }


def _settle(table, results, events, initial, first_number, ways) -> Replayed:
    """Replay until ids and buckets are as assumed."""
    known: dict[Place, int] = {}
    missing: set[Place] = set()
    for rounds in range(1, MAX_ROUNDS):
        replay = run.Replay(*ways)
        for row in table:
            replay.feed((*row, known.get(row[3:5]), row[3:5] in missing))
        replay.finish()
        made = sorted((row[4:6], row[3]) for row in replay.rows(run.MADE))
        numbers = {place: first_number + i for i, (place, _) in enumerate(made)}
        absent, outcomes = _judge_buckets(replay.rows(run.EVENTS), events, initial)
        wrong = any(found is not None and numbers[place] != found for place, found in made)
        if not wrong and absent == missing:
            found = {(row[3], row[4]): row[5] for row in replay.rows(run.OUTCOMES)}
            # All other commands have results.
            appended = {row[3:5] for row in table if row[2] == run.COMMAND} - found.keys()
            assert {index for index, _ in appended} <= _entries(replay.rows(run.APPENDS))
            found |= dict.fromkeys(appended, "appended")
            tables = {table: replay.rows(table) for table in range(6)}
            return Replayed(found | results | outcomes, numbers, tables, rounds)
        missing = absent
        places = sorted({row[3:5] for row in table})
        known, count = {}, first_number
        for place in places:
            known[place] = count
            count += place in numbers
    raise AssertionError("the replay does not settle")


def _limits_in(before: StateRows | None) -> tuple[bool, dict]:
    """Whether a state counts what buckets keep, and its limits."""
    if before is None:
        return False, {}
    header = before.rows.get(HEADER)
    limits = {}
    for key, value in before.rows.items():
        if key.startswith(LIMITS):
            row = read_row(key, value)
            kind = {b"b": "bucket", b"i": "identity"}[row.rest[:1]]
            limits[kind, row.rest[1:].decode()] = row.value
    return header is not None and read_row(HEADER, header).value.counts, limits


def _entries(appends) -> set[int]:
    return {index for row in appends for index in run.decode_appended(row[-1]).entries}


def _judge_buckets(from_scopes, events, initial):
    absent, outcomes = set(), {}
    told = [(row[2], row[3], row[4], row[5] // 8, row[5] % 8, row[6]) for row in from_scopes]
    told += [(name, index, position, 0, event, now) for name, index, position, event, now in events]
    found: dict[bytes, buckets.Bucket] = defaultdict(buckets.Bucket)
    for name, row in initial.items():
        found[name].begin(*row)
    for name, index, position, _, event, now_ms in sorted(told):
        result = found[name].tell(event, now_ms)
        if event == buckets.ASKED and result is not None:
            absent.add((index, position))
        elif event in (buckets.BUCKET_CREATED, buckets.BUCKET_DELETED):
            outcomes[index, position] = result
    return absent, outcomes


def _skipped(nodes, entry, batch, results) -> set[int]:
    """Positions of commands that do not take effect because of their package."""
    skipped: set[int] = set()
    position = max(0, len(batch.commands) - sum(one.count for one in batch.packages))
    sizes = [(None, position), *((one, one.count) for one in batch.packages)]
    at = 0
    for package, count in sizes:
        if package is not None:
            node = nodes[package.node_id]
            verdict = node.take(package.session_id, package.sequence, package.lowest, package.count)
            if verdict != sessions.APPLIED:
                skipped |= set(range(at, at + count))
                results |= {(entry.index, each): verdict for each in range(at, at + count)}
        for each in range(at, min(at + count, len(batch.commands))):
            command = batch.commands[each]
            if isinstance(command, audited.OpenSession) and each not in skipped:
                done = nodes[command.node_id].open(entry.index, command.nonce, command.replaces)
                results[entry.index, each] = "done" if done else "stale"
        at += count
    return skipped


def _state_rows(before, after, edges, patterns):
    found, initial = [], {}
    # Chunks are not replayed. Those of hostile commands may contradict themselves.
    events = [
        (*event, read_row(*event[3:]))
        for event in state_events(before, after)
        if not event[3].startswith(CHUNK)
    ]
    key_of = {}
    for op, *_, row in events:
        if row.kind == "stream":
            key_of[row.value.stream_id] = row.rest
            if row.value.settings.fork is not None:
                edges.append((row.rest, row.value.settings.fork.source))
            if row.value.links or row.value.settings.write_fence:
                edges.append((row.rest, heads.OF_SUBSCRIPTIONS))
        elif row.kind in stated.KINDS:
            if row.kind == "subscription":
                patterns.add(row.value.config.pattern, True)
                edges.append((row.value.config.wake_key, heads.OF_SUBSCRIPTIONS))
            elif row.rest:
                edges.append((row.rest, heads.OF_SUBSCRIPTIONS))
        elif row.kind == "bucket" and op == run.BEFORE:
            initial[row.rest] = row.value.created_ms, row.value.streams, row.value.hidden
    for op, index, position, key, value, row in events:
        of = row.rest if row.kind == "stream" else None
        if row.kind == "producer":
            of = key_of.get(row.numbers[0])
        if row.kind in stated.KINDS:
            of = heads.OF_SUBSCRIPTIONS
        if of is not None:
            at = run.STATE_POSITIONS[row.kind] if op == run.BEFORE else position
            found.append((of, 0, op, index, at, heads.encode((key, value))))
    return found, initial


def _scopes(keys, edges) -> dict[bytes, int]:
    every = {*keys, *(key for edge in edges for key in edge)}
    numbers = {key: number for number, key in enumerate(sorted(every))}
    if not edges:
        return numbers
    left = np.array([numbers[one] for one, _ in edges], dtype=np.int64)
    right = np.array([numbers[other] for _, other in edges], dtype=np.int64)
    nodes, roots = components(left, right)
    root_of = dict(zip(nodes.tolist(), roots.tolist(), strict=True))
    return {key: root_of.get(number, number) for key, number in numbers.items()}


def log_frame(spark: SparkSession, log: Iterable[LogEntry]) -> DataFrame:
    """The log as its scan returns it, in batches of five entries."""
    entries = []
    for entry in log:
        payload = encode_batch(Batch(entry.now_ms, list(entry.commands), list(entry.packages)))
        batch = audited.decode_batch(payload)
        entries.append(
            scan.LogEntry(
                entry.index, entry.term, COMMANDS, 0, entry.now_ms, entry.now_ms, batch.commands,
                batch.packages,
            )
        )  # fmt: skip
    rows = [
        row
        for begin in range(0, len(entries), 5)
        for row in scan.commands_of(0, entries[begin : begin + 5])
    ]
    return spark.createDataFrame(rows, scan.SCANNED_DDL).repartition(3, "index")
