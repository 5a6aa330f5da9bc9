"""Marks and seals: a note that is made late says what one made at once would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamd.streams.fencing import fences
from streamd.streams.fencing.fences import FenceMark, Place, Seal, StreamFence
from streamd.streams.subscriptions.model import Subscription, SubscriptionConfig, Wake

CONFIG = SubscriptionConfig("pull-wake", wake_key=b"bucket\0wakes")


def subscription(number: int, generation: int, *, is_woken: bool) -> Subscription:
    wake = Wake("w", 0) if is_woken else None
    return Subscription(number, "s", CONFIG, b"", 0, generation, wake)


def settled(fence: StreamFence, tail: Place, *known: Subscription, last: int = 0) -> StreamFence:
    return fences.settled(fence, tail, {one.number: one for one in known}.get, lambda _: last)


def test_the_present_generation_has_ended_only_without_a_wake() -> None:
    assert fences.ended_generation(subscription(1, 4, is_woken=True)) == 3
    assert fences.ended_generation(subscription(1, 4, is_woken=False)) == 4


def test_generations_from_before_the_link_are_not_sealed() -> None:
    fence = fences.linked(StreamFence(), 1, 4)
    assert settled(fence, (2, 20), subscription(1, 4, is_woken=False)) == fence
    ended = settled(fence, (2, 20), subscription(1, 5, is_woken=False))
    assert ended.seal == Seal(1, 5, 2, 20)


def test_a_seal_lies_at_the_end_of_the_fenced_writes_not_at_the_tail() -> None:
    fence = fences.written(fences.linked(StreamFence(), 1, 0), 1, 1, (3, 30))
    assert settled(fence, (9, 90), subscription(1, 1, is_woken=False)).seal == Seal(1, 1, 3, 30)


def test_a_seal_stays_as_it_is_when_nothing_more_has_ended() -> None:
    fence = settled(fences.linked(StreamFence(), 1, 0), (1, 10), subscription(1, 1, is_woken=False))
    later = settled(fence, (5, 50), subscription(1, 2, is_woken=True))
    assert later == fence
    assert later.seal == Seal(1, 1, 1, 10)


def test_a_deleted_subscription_is_sealed_and_forgotten() -> None:
    fence = fences.written(fences.linked(StreamFence(), 1, 0), 1, 6, (3, 30))
    assert settled(fence, (4, 40), last=7) == StreamFence((), Seal(1, 7, 3, 30))
    assert settled(fences.linked(StreamFence(), 1, 7), (4, 40), last=7) == StreamFence()
    cut = StreamFence((FenceMark(1, 3, is_linked=False),))
    assert settled(cut, (4, 40), last=7) == StreamFence()


def test_of_several_that_ended_the_one_whose_writes_reach_furthest_is_shown() -> None:
    fence = StreamFence((FenceMark(1, 0, True, 1, 8, 80), FenceMark(2, 0, True, 1, 5, 50)))
    known = [subscription(number, 1, is_woken=False) for number in (1, 2)]
    assert settled(fence, (9, 90), *known).seal == Seal(1, 1, 8, 80)


def test_the_end_of_a_link_seals_the_present_claim() -> None:
    claimed = subscription(1, 3, is_woken=True)
    claimed.lease_until_ms = 9
    fence = fences.unlinked(fences.linked(StreamFence(), 1, 2), (4, 40), claimed)
    assert fence == StreamFence((FenceMark(1, 3, is_linked=False),), Seal(1, 3, 4, 40))


def test_the_end_of_a_link_without_a_claim_seals_nothing_new() -> None:
    fence = fences.linked(StreamFence(), 1, 3)
    cut = fences.unlinked(fence, (4, 40), subscription(1, 3, is_woken=False))
    assert cut == StreamFence((FenceMark(1, 3, is_linked=False),))
    assert fences.unlinked(StreamFence(), (4, 40), subscription(1, 3, is_woken=False)) == (
        StreamFence()
    )


def test_what_ends_while_a_stream_is_not_linked_is_not_sealed_there() -> None:
    fence = StreamFence((FenceMark(1, 3, is_linked=False),))
    later = subscription(1, 7, is_woken=False)
    assert settled(fence, (4, 40), later) == fence
    again = fences.linked(fence, 1, fences.ended_generation(later))
    assert settled(again, (4, 40), later) == StreamFence((FenceMark(1, 7),))


def test_a_link_that_is_made_again_keeps_its_seal() -> None:
    fence = fences.linked(StreamFence((FenceMark(1, 7, is_linked=False),)), 1, 2)
    assert fence == StreamFence((FenceMark(1, 7),))


EVENTS = st.lists(
    st.sampled_from(("wake", "end", "write", "append", "look", "unlink", "link", "recreate")),
    max_size=40,
)


@given(EVENTS)
def test_late_notes_show_what_notes_at_once_would(events: list[str]) -> None:
    """One stream and one subscription at a time: the seal that HEAD computes is the one that a
    server would have written down at the very moment when the claim ended."""
    now = subscription(1, 0, is_woken=False)
    lazy, eager = fences.linked(StreamFence(), 1, 0), None
    is_linked, tail, last, sealed = True, 0, None, 0

    def seal_at_once() -> None:
        """A generation is sealed once: to seal it again changes nothing."""
        nonlocal eager, sealed
        if is_linked and now.wake is not None and now.generation > sealed:
            sealed = now.generation
            eager = (sealed, tail if last is None else last)

    for event in events:
        match event:
            case "wake" if now.wake is None:
                now.generation, now.wake, now.lease_until_ms = now.generation + 1, Wake("w", 0), 9
            case "end" if now.wake is not None:
                seal_at_once()
                now.wake = now.lease_until_ms = None
            case "write" if now.wake is not None and is_linked:
                mark = settled(lazy, (tail, tail), now).mark_of(now.number)
                if mark is None or now.generation <= mark.sealed:
                    continue
                lazy = settled(lazy, (tail, tail), now)
                tail += 1
                last = tail
                lazy = fences.written(lazy, now.number, now.generation, (tail, tail))
            case "append":
                lazy = settled(lazy, (tail, tail), now)
                tail += 1
            case "look":
                lazy = settled(lazy, (tail, tail), now)
            case "unlink" if is_linked:
                seal_at_once()
                lazy = fences.unlinked(settled(lazy, (tail, tail), now), (tail, tail), now)
                is_linked = False
            case "link" if not is_linked:
                lazy = settled(lazy, (tail, tail), now)
                ended = fences.ended_generation(now)
                lazy = fences.linked(lazy, now.number, ended)
                is_linked, sealed = True, max(sealed, ended)
            case "recreate":
                seal_at_once()
                now = subscription(now.number + 1, now.generation, is_woken=False)
                lazy = settled(lazy, (tail, tail), now, last=now.generation)
                lazy = fences.linked(lazy, now.number, now.generation)
                is_linked, last, sealed = True, None, now.generation
        seal = settled(lazy, (tail, tail), now).seal
        assert (None if seal is None else (seal.generation, seal.record)) == eager
