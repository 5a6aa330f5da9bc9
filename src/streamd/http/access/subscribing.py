"""What a sender must be permitted to make or use a subscription.

The scope `subscribe` must cover whatever the subscription may ever tell of: each stream that it
names, its wake stream, and all streams that its pattern could match. This is known from the body,
or from the state: so it is judged by the handlers, which do not tell strangers what exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from streamd.auth.identity import Identity
from streamd.auth.scopes import Scopes
from streamd.http.access.rates import ANONYMOUS
from streamd.protocol.problems import Problem
from streamd.streams.subscriptions import globs
from streamd.streams.subscriptions.model import SubscriptionConfig
from streamd.streams.subscriptions.paths import key_of, path_of

_ONE, _ANY = "*", "**"


class Covered(NamedTuple):
    """A key of a stream, or the beginning of keys if it `is_prefix`; and what it is, in words."""

    text: bytes
    is_prefix: bool
    about: str

    def is_permitted(self, scopes: Scopes) -> bool:
        """Whether the scope `subscribe` covers it."""
        if self.is_prefix:
            return scopes.permit_all("subscribe", self.text)
        return scopes.permit("subscribe", self.text)


def check(identity: Identity | None, config: SubscriptionConfig, named: Collection[bytes]) -> None:
    """Raises `ProblemError` if the sender may not make such a subscription, which names these
    streams. To write its events into the wake stream it needs `append`, too."""
    if identity is None:
        return
    _check_all(identity, _covered(config, named))
    if config.wake_key and not identity.scopes.permit("append", config.wake_key):
        raise Problem.INSUFFICIENT_SCOPE.error("the token has no scope append for the wake stream")


def owner_of(identity: Identity | None) -> str:
    """For whom a subscription counts that a sender makes; empty for a root token, which has no
    limits."""
    if identity is None:
        return ANONYMOUS
    return "" if identity.digest else identity.payer


def check_named(identity: Identity | None, named: Collection[bytes]) -> None:
    """Raises `ProblemError` if a subscription of the sender may not name these streams."""
    if identity is not None:
        _check_all(identity, _each(named))


def _check_all(identity: Identity, wanted: Iterable[Covered]) -> None:
    for one in wanted:
        if not one.is_permitted(identity.scopes):
            raise Problem.INSUFFICIENT_SCOPE.error(
                f"the token has no scope subscribe for {one.about}"
            )


def covers(identity: Identity | None, config: SubscriptionConfig, named: Collection[bytes]) -> bool:
    """Whether the sender may use such a subscription."""
    if identity is None:
        return True
    return all(one.is_permitted(identity.scopes) for one in _covered(config, named))


def _covered(config: SubscriptionConfig, named: Collection[bytes]) -> Iterator[Covered]:
    if config.wake_key:
        yield Covered(config.wake_key, False, "the wake stream")
    if config.pattern:
        yield from covered_by(config.pattern)
    yield from _each(named)


def _each(named: Iterable[bytes]) -> Iterator[Covered]:
    for key in named:
        yield Covered(key, False, f"the stream {path_of(key)!r}")


def covered_by(pattern: str) -> Iterator[Covered]:
    """The least keys and beginnings of keys that have all streams that a pattern could match."""
    about = f"all that the pattern {pattern!r} can match"
    beginning, is_whole = globs.literal_beginning(pattern)
    if is_whole:
        yield Covered(key_of(beginning), False, about)
    elif beginning:
        first, slash, others = beginning.encode().partition(b"/")
        yield Covered(first + b"\0" + (others + b"/" if slash else b""), True, about)
        wildcards = pattern.split("/")[beginning.count("/") + 1 :]
        if set(wildcards) == {_ANY}:
            yield Covered(key_of(beginning), False, about)
    elif pattern == _ONE:
        # Streams of one segment.
        yield Covered(key_of(""), True, about)
    else:
        yield Covered(b"", True, about)
