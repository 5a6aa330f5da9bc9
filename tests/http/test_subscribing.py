"""The scope `subscribe` covers all that a subscription could ever tell of, or it is refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.auth.identity import Identity
from streamd.auth.scopes import Scopes, parse_scopes
from streamd.http.access import subscribing
from streamd.protocol.problems import Problem, ProblemError
from streamd.streams.subscriptions import globs
from streamd.streams.subscriptions.model import SubscriptionConfig
from streamd.streams.subscriptions.paths import key_of

segments = st.text("ab", min_size=1, max_size=2)
paths = st.lists(segments, min_size=1, max_size=4).map("/".join)
wild = st.lists(segments | st.sampled_from(["*", "**", "%2A"]), min_size=1, max_size=4)


def sender(*scopes: str) -> Identity:
    return Identity("worker", Scopes(parse_scopes(scopes)))


def config(pattern: str = "", wake: str = "") -> SubscriptionConfig:
    if wake:
        return SubscriptionConfig("pull-wake", pattern, wake_key=key_of(wake))
    return SubscriptionConfig("webhook", pattern, "https://a.example/")


def is_permitted(identity: Identity, pattern: str) -> bool:
    return subscribing.covers(identity, config(pattern), ())


@given(wild.map("/".join), paths)
@example("a/**", "a")
@example("*", "b")
@example("**/a", "b/a")
@example("a/b/**", "a/b")
def test_what_a_pattern_matches_is_among_what_must_be_covered(pattern: str, path: str) -> None:
    covered = list(subscribing.covered_by(pattern))
    if globs.matches(pattern, path):
        key = key_of(path)
        assert any(
            key.startswith(one.text) if one.is_prefix else key == one.text for one in covered
        )


@pytest.mark.parametrize(
    ("scopes", "pattern"),
    [
        (["subscribe:agents/*"], "agents/*"),
        (["subscribe:agents/*"], "agents/run/*/log"),
        (["subscribe:agents/*", "subscribe:_default/agents"], "agents/**"),
        (["subscribe:agents/run/*"], "agents/run/*"),
        (["subscribe:_default/*"], "*"),
        (["subscribe:_default/a"], "a"),
        (["subscribe:a/b"], "a/b"),
        (["subscribe:*"], "**"),
        (["admin:agents/*"], "agents/*"),
    ],
)
def test_a_pattern_is_permitted_by_what_covers_it(scopes: list[str], pattern: str) -> None:
    assert is_permitted(sender(*scopes), pattern)


@pytest.mark.parametrize(
    ("scopes", "pattern"),
    [
        (["subscribe:agents/run*"], "agents/*"),
        (["subscribe:agents/*"], "agents/**"),
        (["subscribe:agents/*"], "agent/*"),
        (["subscribe:agents/*"], "*/run"),
        (["subscribe:agents/*"], "*"),
        (["subscribe:agents/*", "subscribe:_default/*"], "**"),
        (["subscribe:agents/"], "agents/*"),
        (["subscribe:agents/run"], "agents/run/*"),
        (["read:*", "append:*", "list:*", "operate:*"], "agents/*"),
    ],
)
def test_a_pattern_is_refused_that_could_match_more(scopes: list[str], pattern: str) -> None:
    identity = sender(*scopes)
    assert not is_permitted(identity, pattern)
    with pytest.raises(ProblemError, match="no scope subscribe for all that the pattern"):
        subscribing.check(identity, config(pattern), ())


def test_each_named_stream_is_covered() -> None:
    identity = sender("subscribe:agents/run-1")
    subscribing.check(identity, config(), [b"agents\0run-1"])
    with pytest.raises(ProblemError, match=r"for the stream 'agents/run-2'"):
        subscribing.check(identity, config(), [b"agents\0run-1", b"agents\0run-2"])
    with pytest.raises(ProblemError, match=r"for the stream 'agents/run-2'"):
        subscribing.check_named(identity, [b"agents\0run-2"])


def test_events_are_written_only_where_the_sender_may_append() -> None:
    pull = config("a/*", wake="wakes/pool")
    with pytest.raises(ProblemError, match="no scope subscribe for the wake stream"):
        subscribing.check(sender("subscribe:a/*", "append:*"), pull, ())
    with pytest.raises(ProblemError, match="no scope append for the wake stream") as refused:
        subscribing.check(sender("subscribe:a/*", "subscribe:wakes/pool"), pull, ())
    assert refused.value.problem is Problem.INSUFFICIENT_SCOPE
    subscribing.check(sender("subscribe:*", "append:wakes/pool"), pull, ())


def test_where_nobody_needs_a_token_all_is_permitted() -> None:
    subscribing.check(None, config("**", wake="wakes"), [b"a\0b"])
    subscribing.check_named(None, [b"a\0b"])
    assert subscribing.covers(None, config("**"), ())
