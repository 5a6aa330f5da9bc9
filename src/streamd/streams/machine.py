"""The stream machine: commands in, outcomes out, the same on every replica and every replay.

Its only time is the one stamped into the log, and it touches nothing but its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamd.streams import buckets, expiry, keys, producers, quotas, snapshots, tokens
from streamd.streams.checks import in_runs, is_applicable
from streamd.streams.cold import packing
from streamd.streams.commands import (
    AddLogKey,
    Append,
    Archived,
    BeginUpload,
    Change,
    Command,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    DropSlices,
    DropUploads,
    EndProducers,
    FlushCold,
    ForgetPacks,
    MoveSlices,
    OpenSession,
    Outcome,
    PublishSnapshot,
    RaiseLevel,
    RecordOperation,
    RenewIncarnations,
    Result,
    Scrubbed,
    SetLimits,
    StorePart,
    Sweep,
    Touch,
)
from streamd.streams.content import DEFAULT_CONTENT_TYPE, same_media_type
from streamd.streams.fencing import seals, write_fences
from streamd.streams.forks import Anchor, ForkRefused, end_stream, resolve_fork
from streamd.streams.model import Bucket, IfMatch, Stream
from streamd.streams.offsets import Position
from streamd.streams.operations import records as operation_records
from streamd.streams.sessions import PackageStamp, open_session
from streamd.streams.state import State
from streamd.streams.subscriptions import links
from streamd.streams.subscriptions.applying import Subscribing
from streamd.streams.subscriptions.wakes import Wakes
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken


class Machine:
    """Applies commands to a `State`. `changes` lists what live readers must read; the caller
    removes it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.changes: dict[int, Change] = {}
        self._index = self._term = 0
        self._wakes = Wakes(state, self._living, self._change)
        self._subscribing = Subscribing(state, self._wakes, self._living)

    def apply(
        self,
        index: int,
        term: int,
        now_ms: int,
        commands: list[Command],
        packages: Sequence[PackageStamp] = (),
    ) -> list[Outcome]:
        """Apply the commands of log entry `index`, in order, at log time `now_ms`.

        The last of them are the `packages`, end to end, each of which takes effect once however
        often the log has it. No command raises, whatever it holds: one that cannot be applied
        changes nothing, and its outcome is `INVALID`.
        """
        header = self.state.header
        assert index == header.applied_index + 1, (index, header.applied_index)
        now_ms = header.log_ms = max(now_ms, header.log_ms)
        self._index = self._wakes.index = index
        self._term = term
        if packages:
            outcomes = self._apply_packages(packages, commands, now_ms)
        else:
            outcomes = self._do_all(commands, now_ms)
        header.applied_index = index
        header.applied_term = term
        return outcomes

    def configure(self, index: int, term: int, configuration: bytes, gone: Iterable[int]) -> None:
        """Take log entry `index`, which removes the nodes `gone` from the members."""
        self.state.header.configuration = configuration
        for node_id in gone:
            self.state.sessions.delete(keys.number(node_id))
        self.apply(index, term, 0, [])

    def take_changes(self) -> dict[int, Change]:
        changes, self.changes = self.changes, {}
        return changes

    def _do_all(self, commands: Sequence[Command], now_ms: int) -> list[Outcome]:
        """Apply commands in order. Appends to one stream come in runs, and most are judged by the
        one before them."""
        outcomes: list[Outcome] = []
        for first, run in in_runs(commands):
            outcomes.append(self._do(first, now_ms))
            if not run:
                continue
            if outcomes[-1].result is Result.APPENDED:
                outcomes += self._append_run(run)
            else:
                outcomes += [self._do(command, now_ms) for command in run]
        return outcomes

    def _do(self, command: Command, now_ms: int) -> Outcome:
        outcome = self._apply_one(command, now_ms)
        if outcome.result in quotas.REFUSALS:
            quotas.note_refusal(self.state, outcome.result)
        return self.placed(outcome)

    def placed(self, outcome: Outcome) -> Outcome:
        """The outcome, with the incarnation as clients know it."""
        base = self.state.header.incarnation_base
        if base and outcome.incarnation:
            outcome.incarnation += base
        return outcome

    def _apply_one(self, command: Command, now_ms: int) -> Outcome:
        match command:
            case Append():
                return self._append(command, now_ms)
            case Create():
                return self._create(command, now_ms)
            case Delete():
                return self._delete(command, now_ms)
            case Touch():
                return expiry.touch(self.state, command)
            case Sweep():
                return expiry.sweep(self.state, command, now_ms, self._end)
            case CreateBucket():
                return buckets.create(self.state, command, now_ms)
            case DeleteBucket():
                return buckets.delete(self.state, command)
            case BeginUpload():
                return self._publish(command, now_ms)
            case _ if not is_applicable(command):
                return Outcome(Result.INVALID)
            case StorePart():
                return snapshots.store_part(self.state, command, now_ms)
            case PublishSnapshot():
                return self._publish(command, now_ms)
            case DropUploads():
                return snapshots.drop_uploads(self.state, command, now_ms)
            case FlushCold():
                return packing.flush(self.state, command, self._index, self._term)
            case MoveSlices():
                return packing.move(self.state, command, self._index, self._term)
            case DropSlices():
                return packing.drop(self.state, command, self._index)
            case ForgetPacks():
                return packing.forget(self.state, command)
            case Archived():
                return packing.archive(self.state, command, self._index, self._term)
            case AddLogKey():
                return packing.add_log_key(self.state, command)
            case RenewIncarnations():
                self.state.become_another(command.base)
                return Outcome(Result.DONE)
            case RecordOperation():
                return operation_records.record(self.state.operations, command)
            case RaiseLevel():
                return operation_records.raise_features(self.state.header, command)
            case Scrubbed():
                return packing.scrub(self.state, command, self._term)
            case OpenSession():
                return open_session(self.state.sessions, command, self._index)
            case EndProducers():
                return producers.end_idle(self.state, command, now_ms)
            case SetLimits():
                return quotas.set_limits(self.state, command)
            case CreateToken() | RotateToken() | RevokeToken():
                return tokens.apply(self.state.tokens, command, now_ms)
        return self._subscribing.apply(command, now_ms)

    # -- sessions -----------------------------------------------------------------------------

    def _apply_packages(
        self, packages: Sequence[PackageStamp], commands: list[Command], now_ms: int
    ) -> list[Outcome]:
        single = max(0, len(commands) - sum(stamp.count for stamp in packages))
        outcomes = self._do_all(commands[:single], now_ms)
        for stamp in packages:
            end = len(outcomes) + stamp.count
            outcomes += self._apply_package(stamp, commands[len(outcomes) : end], now_ms)
        return outcomes

    def _apply_package(
        self, stamp: PackageStamp, commands: list[Command], now_ms: int
    ) -> list[Outcome]:
        key = keys.number(stamp.node_id)
        session = self.state.sessions.get(key)
        if session is None or not session.admits(stamp):
            return [Outcome(Result.SESSION_LOST) for _ in commands]
        session.forget_below(stamp.lowest)
        outcomes = session.outcomes.get(stamp.sequence)
        if outcomes is None:
            outcomes = self._do_all(commands, now_ms)
            session.outcomes[stamp.sequence] = outcomes
        self.state.sessions.put(key, session)
        return outcomes

    # -- streams ------------------------------------------------------------------------------

    def _living(self, key: bytes, now_ms: int) -> Stream | Result:
        """The stream, or why it cannot be used; an expired one ends here."""
        stream = self.state.streams.get(key)
        if stream is None:
            return Result.NOT_FOUND
        if stream.deleted:
            return Result.GONE
        if stream.expired(now_ms):
            self._end(key, stream)
            return Result.NOT_FOUND
        return stream

    def _absent(self, why: Result, key: bytes, if_match: IfMatch | None) -> Outcome:
        """The outcome of a write to a stream that does not exist."""
        if if_match is None:
            return Outcome(why)
        if not keys.has_bucket(key):
            return Outcome(Result.INVALID)
        # The client hears 404 where buckets are created explicitly (extensions section 1.6).
        if self.state.buckets.get(keys.bucket_of(key)) is None:
            return Outcome(Result.BUCKET_NOT_FOUND)
        return Outcome(Result.PRECONDITION_FAILED)

    def _holds(self, if_match: IfMatch | None, stream: Stream) -> bool:
        return if_match is None or if_match.holds(stream, self.state.header.incarnation_base)

    # -- appending ----------------------------------------------------------------------------

    def _append(self, command: Append, now_ms: int) -> Outcome:
        judged = self.judge_append(command, now_ms)
        if isinstance(judged, Outcome):
            return judged
        return self._append_accepted(judged, command, now_ms)

    def judge_append(self, command: Append, now_ms: int) -> Stream | Outcome:
        """The stream to append to, or the outcome of an append that changes nothing."""
        stream = self._living(command.key, now_ms)
        fence = command.fence
        if isinstance(stream, Result):
            if fence is not None and fence.is_alone:
                return write_fences.out_of_scope()
            return self._absent(stream, command.key, command.if_match)
        if fence is not None or stream.settings.write_fence:
            refusal = write_fences.refusal(self.state, stream, command, now_ms)
            if refusal is not None:
                return refusal
        producer = command.producer
        if producer is not None:
            # Before the condition: a retry carries the ETag from before the first try, so it would
            # always fail, and its producer would take its own write for refused.
            refusal = producers.refusal(self.state, stream, producer)
            if refusal is not None:
                return refusal
        if stream.closed:
            if command.close and not command.lengths and producer is None:
                return self._unless_it_differs(stream, command.if_match, Result.CLOSED)
            return Outcome.of(Result.STREAM_CLOSED, stream)
        if command.lengths and not same_media_type(command.content_type, stream.content_type):
            return Outcome.of(Result.CONTENT_TYPE_DIFFERS, stream)
        last_seq = stream.last_seq
        if command.seq is not None and last_seq is not None and command.seq <= last_seq:
            return Outcome.of(Result.SEQ_REGRESSION, stream)
        # Last: a condition decides only about what would otherwise be done (RFC 9110 section
        # 13.2.1).
        if not self._holds(command.if_match, stream):
            return Outcome.of(Result.PRECONDITION_FAILED, stream)
        if producers.is_one_too_many(self.state, stream, command):
            return Outcome.of(Result.TOO_MANY_PRODUCERS, stream)
        if command.lengths:
            full = quotas.refusal(self.state, command.key, stream, len(command.data))
            if full is not None:
                return Outcome.of(full, stream)
        return stream

    def _append_accepted(self, stream: Stream, command: Append, now_ms: int) -> Outcome:
        change = self._change(stream)
        if command.seq is not None:
            stream.last_seq = command.seq
        is_fenced, is_watched = stream.settings.write_fence, False
        if stream.watched != self.state.header.pattern_version and (command.lengths or is_fenced):
            is_watched = links.look(self.state, command.key, stream)
        if is_fenced:
            seals.settle(self.state, stream)
        if command.lengths:
            self.state.append(command.key, stream, [(command.data, command.lengths)])
            quotas.grow(self.state, command.key, stream, len(command.data))
            stream.last_write_ms = now_ms
            change.parts.append(command.data)
        if command.close:
            stream.closed = True
            stream.closed_by = None if command.producer is None else command.producer.uncounted
        if stream.ttl_ms is not None:
            stream.touched_ms = now_ms
        producer = command.producer
        if producer is not None:
            is_bound = is_fenced and command.fence is not None
            producers.remember(self.state, command.key, stream, producer, now_ms, is_bound=is_bound)
        if is_fenced and command.fence is not None:
            seals.write(stream, command.fence)
        self.state.streams.put(command.key, stream)
        result = Result.APPENDED if command.lengths else Result.CLOSED
        if producer is None:
            outcome = Outcome(result, stream.tail, stream.closed, incarnation=stream.stream_id)
        else:
            outcome = Outcome.of(result, stream, producer.epoch, producer.seq)
        if is_watched and command.lengths:
            # Last, because the event of a wake may be appended to this stream.
            self._wakes.appended(command.key, stream, now_ms)
        return outcome

    def _append_run(self, run: Sequence[Append]) -> list[Outcome]:
        """Append what the append before it was judged for: that one also noted the write's time
        and marked the stream to be stored."""
        key = run[0].key
        stream = self.state.streams.get(key)
        assert stream is not None, "the append before it took effect"
        parts = self._change(stream).parts
        incarnation = self.state.header.incarnation_base + stream.stream_id
        room = quotas.room(self.state, key, stream) if self.state.limits.quotas else None
        appends = []
        outcomes = []
        tail = stream.tail
        for command in run:
            data, lengths = command.data, command.lengths
            if room is not None:
                if len(data) > room[0]:
                    quotas.note_refusal(self.state, room[1])
                    refused = Outcome.of(room[1], stream)
                    refused.tail, refused.incarnation = tail, incarnation
                    outcomes.append(refused)
                    continue
                room = room[0] - len(data), room[1]
            tail = Position(tail.record + len(lengths), tail.byte + len(data))
            appends.append((data, lengths))
            parts.append(data)
            outcomes.append(Outcome(Result.APPENDED, tail, incarnation=incarnation))
        size = tail.byte - stream.size
        self.state.append(key, stream, appends)
        assert stream.tail == tail, "outcomes say where the records are"
        quotas.grow(self.state, key, stream, size)
        return outcomes

    def _unless_it_differs(
        self, stream: Stream, if_match: IfMatch | None, result: Result
    ) -> Outcome:
        if not self._holds(if_match, stream):
            result = Result.PRECONDITION_FAILED
        return Outcome.of(result, stream)

    def _change(self, stream: Stream) -> Change:
        change = self.changes.get(stream.stream_id)
        if change is None:
            change = self.changes[stream.stream_id] = Change(stream, stream.tail)
        # If it was stored meanwhile, the value may have left memory and come back as another
        # object, and only that object's tail moves with the append.
        change.stream = stream
        return change

    # -- creating -----------------------------------------------------------------------------

    def _create(self, command: Create, now_ms: int) -> Outcome:
        judged = self.judge_create(command, now_ms)
        if isinstance(judged, Outcome):
            return judged
        bucket_name = keys.bucket_of(command.key)
        bucket = self.state.buckets.get(bucket_name) or Bucket(now_ms)
        bucket.streams += 1
        self.state.buckets.put(bucket_name, bucket)
        return self._create_new(command, judged, now_ms)

    def judge_create(self, command: Create, now_ms: int) -> Anchor | Outcome | None:
        """Where a fork begins, None for another new stream, or the outcome of a command that
        changes nothing."""
        if not keys.has_bucket(command.key):
            return Outcome(Result.INVALID)
        bucket_name = keys.bucket_of(command.key)
        bucket = self.state.buckets.get(bucket_name)
        if bucket is None and not command.implicit_bucket:
            return Outcome(Result.BUCKET_NOT_FOUND)
        existing = self.state.streams.get(command.key)
        if existing is not None and not existing.deleted and existing.expired(now_ms):
            self._end(command.key, existing)
            existing = self.state.streams.get(command.key)
        if existing is not None:
            return self._create_again(command, existing)
        anchor: Anchor | None = None
        if command.settings.fork is not None:
            try:
                anchor = resolve_fork(self.state, command, now_ms)
            except ForkRefused as refusal:
                return Outcome(refusal.result, earliest=refusal.earliest)
        if command.if_match is not None:
            return Outcome(Result.PRECONDITION_FAILED)
        inherited = 0 if anchor is None else anchor.inherited_bytes
        size = inherited + (len(command.data) if command.lengths else 0)
        full = quotas.refusal_to_create(self.state, command.key, bucket, size)
        return anchor if full is None else Outcome(full)

    def _create_again(self, command: Create, existing: Stream) -> Outcome:
        if existing.deleted:
            return Outcome(Result.IN_USE_BY_FORKS)
        same = existing.closed == command.closed and existing.settings.asks_same(command.settings)
        if not same:
            return Outcome.of(Result.SETTINGS_DIFFER, existing)
        return self._unless_it_differs(existing, command.if_match, Result.EXISTS)

    def _create_new(self, command: Create, anchor: Anchor | None, now_ms: int) -> Outcome:
        settings = command.settings
        header = self.state.header
        stream = Stream(
            header.next_stream_id,
            settings,
            settings.content_type or DEFAULT_CONTENT_TYPE,
            now_ms,
            now_ms,
            now_ms,
            settings.ttl_ms,
            settings.expires_at,
            settings.expires_at_ms,
        )
        header.next_stream_id += 1
        header.streams += 1
        if anchor is not None:
            anchor.attach(self.state, stream)
        quotas.count(self.state, command.key, stream)
        has_subscriptions = len(self.state.subscriptions) > 0
        if has_subscriptions:
            links.refresh(self.state, command.key, stream)
        if command.lengths:
            self.state.append(command.key, stream, [(command.data, command.lengths)])
            quotas.grow(self.state, command.key, stream, len(command.data))
        stream.closed = command.closed
        self.state.schedule_sweep(command.key, stream)
        self.state.streams.put(command.key, stream)
        outcome = Outcome.of(Result.CREATED, stream)
        if has_subscriptions:
            self._wakes.created(command.key, stream, now_ms)
        return outcome

    # -- snapshots ----------------------------------------------------------------------------

    def _publish(self, command: BeginUpload | PublishSnapshot, now_ms: int) -> Outcome:
        stream = self._living(command.key, now_ms)
        if isinstance(stream, Result):
            if isinstance(command, PublishSnapshot) and command.upload_id:
                snapshots.drop_uploads(self.state, DropUploads([command.upload_id]), now_ms)
            return Outcome(stream)
        if isinstance(command, BeginUpload):
            return snapshots.begin_upload(self.state, stream, command, now_ms)
        return snapshots.publish(self.state, stream, command, now_ms)

    # -- ending -------------------------------------------------------------------------------

    def _delete(self, command: Delete, now_ms: int) -> Outcome:
        stream = self._living(command.key, now_ms)
        if isinstance(stream, Result):
            return self._absent(stream, command.key, command.if_match)
        if not self._holds(command.if_match, stream):
            return Outcome.of(Result.PRECONDITION_FAILED, stream)
        self._end(command.key, stream)
        return Outcome.of(Result.DELETED, stream)

    def _end(self, key: bytes, stream: Stream) -> None:
        self._change(stream).ended = True
        if stream.links or stream.fence.marks:
            links.drop_all(self.state, key, stream)
        end_stream(self.state, key, stream)
