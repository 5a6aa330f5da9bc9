"""Write fencing in the machine: what is judged, in which order, and what a seal says."""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamd.streams.commands import Append, Create, EndProducers, Result
from streamd.streams.fencing.fences import Seal
from streamd.streams.model import ProducerStamp, Settings
from streamd.streams.producers import MIN_IDLE_MS
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    BeginDelivery,
    ClaimWake,
    DeleteSubscription,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    UnlinkStream,
    VerifyClaim,
)
from streamd.streams.subscriptions.model import (
    Credential,
    FenceStamp,
    SubscriptionConfig,
)
from tests.streams.driver import JSON, TEXT, key
from tests.streams.fenced import (
    GRACE_MS,
    LEASE_MS,
    WAKES,
    Fenced,
    fenced,
    reason,
    stamp_of,
    wake_of,
)


def test_a_claim_writes_and_nobody_else_under_its_producer() -> None:
    driver = fenced()
    stamp = driver.claim()
    assert driver.write(stamp).result is Result.APPENDED
    assert driver.write(stamp).result is Result.DUPLICATE
    assert reason(driver.write(None)) == "bound"
    assert reason(driver.write(None, epoch=99)) == "bound"
    assert driver.write(None, producer="q").result is Result.APPENDED
    assert driver.write(stamp, 1).result is Result.APPENDED


def test_refusals_come_in_their_order() -> None:
    driver = fenced()
    stamp = driver.claim()
    driver.now_ms += LEASE_MS + GRACE_MS + 1
    assert reason(driver.write(stamp)) == "credential"
    driver.now_ms -= GRACE_MS + 1
    assert reason(driver.write(stamp, epoch=7)) == "credential"  # The log's time never goes back.


def test_the_wake_of_a_webhook_is_its_own_holder() -> None:
    driver = Fenced()
    driver.make("s")
    config = SubscriptionConfig("webhook", "", "https://example.net/", b"", LEASE_MS)
    driver.do(PutSubscription("sub", config, [key("s")]))
    driver.append(b"work")
    subscription = driver.state.subscriptions.by_id("sub")
    assert subscription is not None
    assert subscription.wake is not None
    begun = driver.do(BeginDelivery(subscription.number, subscription.wake.wake_id, 1))
    assert begun.wake is not None
    stamp = stamp_of(begun.wake)
    assert driver.write(stamp).result is Result.APPENDED
    refused = driver.write(stamp, epoch=7)
    assert refused.wake is not None
    assert refused.wake.holder == stamp.wake_id


def test_a_refusal_by_the_epoch_comes_after_that_by_the_claim() -> None:
    driver = fenced()
    stamp = driver.claim()
    assert reason(driver.write(stamp, epoch=stamp.generation + 1)) == "epoch"
    other = FenceStamp(stamp.number, stamp.generation, stamp.wake_id, "b", stamp.expires_ms)
    assert reason(driver.write(other, epoch=stamp.generation + 1)) == "marker"
    driver.now_ms += LEASE_MS
    refused = driver.write(stamp)
    assert reason(refused) == "marker"
    assert refused.wake is not None
    assert refused.wake.holder == ""
    assert refused.tail == (0, 0)


def test_other_credentials_are_refused_on_fenced_streams_only() -> None:
    driver = fenced()
    driver.create("open")
    for credential, result in (
        (Credential.INVALID, Result.WRITE_FENCED),
        (Credential.WAKE, Result.WRITE_OUT_OF_SCOPE),
    ):
        stamp = FenceStamp(credential=credential)
        assert driver.write(stamp).result is result
        assert driver.write(stamp, int(credential.value), name="open").result in (
            Result.APPENDED,
            Result.SEQ_GAP,
        )


def test_a_token_alone_is_out_of_scope_everywhere_else() -> None:
    driver = fenced()
    stamp = driver.claim()
    alone = FenceStamp(
        stamp.number,
        stamp.generation,
        stamp.wake_id,
        stamp.holder,
        stamp.expires_ms,
        is_alone=True,
    )
    driver.create("open")
    driver.make("other")
    refused = [driver.write(alone, name=name) for name in ("open", "other", "none")]
    assert {(one.result, reason(one), one.incarnation) for one in refused} == {
        (Result.WRITE_OUT_OF_SCOPE, "scope", 0)
    }
    assert driver.write(alone).result is Result.APPENDED
    driver.delete("open")
    assert driver.write(stamp, name="open").result is Result.NOT_FOUND


def test_a_fenced_write_needs_a_producer() -> None:
    driver = fenced()
    stamp = driver.claim()
    refused = driver.do(Append(key("s"), TEXT, b"x", [1], fence=stamp))
    assert reason(refused) == "producer_required"


def test_open_writes_in_one_entry_with_fenced_ones_are_judged_each() -> None:
    driver = fenced()
    stamp = driver.claim()

    def append(seq: int | None, fence: FenceStamp | None) -> Append:
        producer = None if seq is None else ProducerStamp("p", stamp.generation, seq)
        return Append(key("s"), TEXT, b"x", [1], producer=producer, fence=fence)

    stale = FenceStamp(stamp.number, stamp.generation, stamp.wake_id, "b", stamp.expires_ms)
    outcomes = driver.entry(
        append(None, None),
        append(0, stamp),
        append(None, None),
        append(1, stale),
        append(None, None),
        append(1, None),
        append(1, stamp),
    )
    assert [one.result.name for one in outcomes] == [
        "APPENDED",
        "APPENDED",
        "APPENDED",
        "WRITE_FENCED",
        "APPENDED",
        "WRITE_FENCED",
        "APPENDED",
    ]


def test_a_stream_that_is_older_than_a_pattern_is_written_under_its_claim() -> None:
    driver = Fenced()
    driver.create("wakes", JSON)
    driver.make("s")
    driver.subscribe(pattern="b/*")
    # Work elsewhere: the stream itself is not linked yet.
    driver.make("t")
    driver.append(b"work", "t")
    stamp = driver.claim()
    assert driver.write(stamp).result is Result.APPENDED
    assert driver.do(ReleaseWake("sub", wake_of(stamp))).result is Result.DONE
    assert driver.seal() == Seal(stamp.number, stamp.generation, 1, 1)
    assert reason(driver.write(stamp, 1)) == "sealed"


def test_a_close_without_records_binds_its_producer() -> None:
    driver = fenced()
    stamp = driver.claim()
    assert driver.write(stamp, data=b"", close=True).result is Result.CLOSED
    assert reason(driver.write(None)) == "bound"
    assert driver.write(None, producer="q").result is Result.STREAM_CLOSED


def test_bound_producers_are_not_ended() -> None:
    driver = fenced()
    stamp = driver.claim()
    driver.write(stamp)
    driver.write(None, producer="q")
    driver.now_ms += MIN_IDLE_MS
    driver.do(EndProducers(key("s"), ["p", "q"]))
    assert driver.stream("s").producers == 1
    assert reason(driver.write(None)) == "bound"
    assert driver.write(None, 1, producer="q").result is Result.SEQ_GAP


def test_verifying_tells_the_lease_and_changes_nothing() -> None:
    driver = fenced()
    stamp = driver.claim()
    before = driver.state.subscriptions.version
    driver.now_ms += 10_000
    found = driver.do(VerifyClaim(stamp))
    assert found.result is Result.DONE
    assert found.wake is not None
    assert found.wake.now_ms == driver.now_ms
    assert found.wake.lease_until_ms == driver.now_ms + LEASE_MS - 10_000
    driver.now_ms += 20_000
    assert reason(driver.do(VerifyClaim(stamp))) == "precheck"
    driver.now_ms += GRACE_MS + 1
    assert reason(driver.do(VerifyClaim(stamp))) == "credential"
    assert driver.state.subscriptions.version is before
    driver.do(DeleteSubscription("sub"))
    fresh = FenceStamp(stamp.number, 1, stamp.wake_id, "a", driver.now_ms)
    assert reason(driver.do(VerifyClaim(fresh))) == "precheck"


def test_a_write_under_a_deleted_subscription_is_refused_without_a_holder() -> None:
    driver = fenced()
    driver.make("late")
    stamp = driver.claim()
    driver.do(DeleteSubscription("sub"))
    refused = driver.write(stamp, name="late")
    assert (refused.result, reason(refused)) == (Result.WRITE_FENCED, "marker")
    assert refused.wake is not None
    assert (refused.wake.generation, refused.wake.holder) == (0, "")


def test_a_fenced_stream_may_be_the_wake_stream_of_others() -> None:
    """An event is an open write: the seal of the claim before it ends where that wrote last."""
    driver = Fenced()
    made = driver.do(Create(WAKES, Settings(JSON, write_fence=True), implicit_bucket=True))
    assert made.result is Result.CREATED
    driver.make("s")
    driver.subscribe()
    of_wakes = SubscriptionConfig("pull-wake", "", "", key("others"), LEASE_MS)
    driver.do(PutSubscription("of-wakes", of_wakes, [WAKES]))
    wake = driver.do(ClaimWake("of-wakes", "a")).wake
    assert wake is not None
    driver.do(ReleaseWake("of-wakes", wake_of(stamp_of(wake))))
    driver.append(b"x", "s")
    assert driver.stream("wakes").records == 1
    assert driver.seal("wakes") == Seal(wake.number, wake.generation, 0, 0)


def test_what_a_deleted_subscription_leaves_goes_with_its_last_stream() -> None:
    driver = fenced()
    driver.make("t")
    driver.make("u")
    driver.do(LinkStreams("sub", [key("t"), key("u")]))
    stamp = driver.claim()
    number = stamp.number.to_bytes(8, "big")
    driver.do(DeleteSubscription("sub"))
    assert driver.seal() == driver.seal("t") == Seal(stamp.number, stamp.generation, 0, 0)
    for name in ("s", "t", "u"):
        assert driver.state.ended_claims.get(number) is not None
        if name == "u":
            driver.delete("u")
        else:
            driver.append(b"x", name)
    assert driver.state.ended_claims.get(number) is None
    assert driver.seal() == Seal(stamp.number, stamp.generation, 0, 0)


class Claims(RuleBasedStateMachine):
    """Any interleaving of claims, writes, ends and looks: no byte of a generation comes after its
    seal, and the seal that is shown is the one that a server would have written down at once."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = fenced()
        self.claims: list[FenceStamp] = []
        # Of each record of the stream, the number and generation under which it was written.
        self.written: list[tuple[int, int] | None] = []
        self.eager: Seal | None = None
        self.is_linked = True
        self.sealed = 0
        self.seqs: dict[tuple[int, int], int] = {}
        # The last claim, until it ends, and the end of its lease.
        self.live: FenceStamp | None = None
        self.until_ms = 0

    # -- what a server that seals at once would note ------------------------------------------

    def before(self) -> tuple[int, int, bool] | None:
        found = self.driver.state.subscriptions.by_id("sub")
        if found is None:
            return None
        return found.number, found.generation, found.wake is not None

    def note(self, was: tuple[int, int, bool] | None, *, was_linked: bool = True) -> None:
        """Seal what has ended since: the wake that was outstanding, if it is no longer."""
        if was is None or not was[2] or not was_linked:
            return
        now = self.before()
        if now != was:
            self.seal(was[0], was[1])

    def seal(self, number: int, generation: int) -> None:
        if generation <= self.sealed:
            return
        self.sealed = generation
        under = [
            place + 1
            for place, one in enumerate(self.written)
            if one is not None and one[0] == number
        ]
        at = under[-1] if under else len(self.written)
        self.eager = Seal(number, generation, at, at)

    # -- what happens -------------------------------------------------------------------------

    @rule()
    def claim(self) -> None:
        was = self.before()
        outcome = self.driver.do(ClaimWake("sub", f"w{len(self.claims)}"))
        self.note(was, was_linked=self.is_linked)
        if outcome.result is Result.DONE and outcome.wake is not None:
            self.live = stamp_of(outcome.wake)
            self.until_ms = self.driver.now_ms + LEASE_MS
            self.claims.append(self.live)

    @precondition(lambda self: self.claims)
    @rule()
    def heartbeat(self) -> None:
        was = self.before()
        outcome = self.driver.do(AcknowledgeWake("sub", wake_of(self.claims[-1])))
        self.note(was, was_linked=self.is_linked)
        if outcome.result is Result.DONE:
            self.until_ms = self.driver.now_ms + LEASE_MS

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), is_old=st.booleans())
    def write(self, data: st.DataObject, is_old: bool) -> None:
        stamp = data.draw(st.sampled_from(self.claims)) if is_old else self.claims[-1]
        line = stamp.number, stamp.generation
        outcome = self.driver.write(
            stamp, self.seqs.get(line, 0), producer=f"{stamp.number}-{stamp.generation}"
        )
        is_live = stamp == self.live and self.driver.now_ms < self.until_ms and self.is_linked
        # A link that was made again does not unseal the claim that was sealed with the first one.
        assert (outcome.result is Result.APPENDED) == (is_live and line[1] > self.sealed)
        if outcome.result is Result.APPENDED:
            self.seqs[line] = self.seqs.get(line, 0) + 1
            self.written.append(line)
        else:
            assert outcome.result in (Result.WRITE_FENCED, Result.WRITE_OUT_OF_SCOPE)

    @rule()
    def open_write(self) -> None:
        assert self.driver.append(b"x").result is Result.APPENDED
        self.written.append(None)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), is_release=st.booleans())
    def end(self, data: st.DataObject, is_release: bool) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        stamp = wake_of(claim)
        was = self.before()
        if is_release:
            outcome = self.driver.do(ReleaseWake("sub", stamp))
        else:
            outcome = self.driver.do(AcknowledgeWake("sub", stamp, done=True))
        if outcome.result is Result.DONE:
            assert claim == self.live
            self.live = None
        self.note(was, was_linked=self.is_linked)

    @rule(of_lease=st.sampled_from((0.3, 1.0)))
    def wait(self, of_lease: float) -> None:
        self.driver.now_ms += int(LEASE_MS * of_lease)

    @rule()
    def end_leases(self) -> None:
        was = self.before()
        if was is not None:
            self.driver.do(EndLeases([was[0]]))
            self.note(was, was_linked=self.is_linked)

    @rule()
    def unlink(self) -> None:
        was = self.before()
        found = self.driver.do(UnlinkStream("sub", key("s")))
        self.note(was, was_linked=self.is_linked)
        subscription = self.driver.state.subscriptions.by_id("sub")
        if found.result is Result.DONE and self.is_linked and subscription is not None:
            if subscription.lease_until_ms is not None:
                self.seal(subscription.number, subscription.generation)
            self.is_linked = False

    @rule()
    def link(self) -> None:
        was = self.before()
        self.driver.do(LinkStreams("sub", [key("s")]))
        self.note(was, was_linked=self.is_linked)
        now = self.before()
        if now is not None and not self.is_linked:
            self.is_linked = True
            self.sealed = max(self.sealed, now[1] - now[2])

    @rule(is_made_again=st.booleans())
    def delete(self, is_made_again: bool) -> None:
        was = self.before()
        if was is not None:
            self.driver.do(DeleteSubscription("sub"))
            self.note(was, was_linked=self.is_linked)
            self.is_linked, self.live = False, None
        if is_made_again:
            self.driver.subscribe()
            self.is_linked = True
            now = self.before()
            assert now is not None
            self.sealed = now[1]

    @rule()
    def reopen(self) -> None:
        self.driver.flush()
        self.driver.reopen()

    # -- what must hold -----------------------------------------------------------------------

    @invariant()
    def no_byte_of_a_generation_comes_after_its_seal(self) -> None:
        seal = self.driver.seal()
        assert seal == self.eager
        if seal is not None:
            late = [one for one in self.written[seal.record :] if one is not None]
            assert all(one[0] != seal.number or one[1] > seal.generation for one in late)
        lines = [one for one in self.written if one is not None]
        assert lines == sorted(lines), "two generations are mixed"

    @invariant()
    def every_look_says_the_same(self) -> None:
        assert self.driver.stream("s").records == len(self.written)


TestClaims = Claims.TestCase
TestClaims.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
