"""Scopes: permissions in the form ``verb:pattern``, and their compiled form.

A pattern names streams by bucket and name, as in ``agents/run-17``, where a stream with a path of
one segment (``/v1/stream/hello``) is ``_default/hello``. A ``*`` is possible only at the end, where
it stands for any further characters:

==================  ===========================================================================
``*``               everything
``tenant-*``        all buckets whose names begin so, and their streams
``agents/*``        the bucket ``agents`` and all of its streams
``agents/run-*``    the streams in ``agents`` whose names begin so; not the bucket
``agents/run-17``   this stream only
``agents/``         the bucket itself, without its streams
==================  ===========================================================================

A target is what a request wants to use: a stream's key (bucket NUL name), a bucket with a NUL after
it, or for the verb ``operate`` an operations path without its first slash. A pattern is compared
with it byte by byte, after its first slash became a NUL: no bucket's name has a slash, so no
pattern for a bucket can match another bucket's streams.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

Verb = Literal[
    "read",
    "append",
    "create",
    "close",
    "delete",
    "fork",
    "snapshot",
    "subscribe",
    "list",
    "admin",
    "operate",
]
VERBS: tuple[Verb, ...] = get_args(Verb)
# The verbs that ``admin`` of a pattern includes.
_OF_ADMIN = tuple(verb for verb in VERBS if verb != "operate")
# Scopes with these verbs apply to buckets only.
_OF_BUCKETS = ("list",)

MAX_SCOPES = 100
# The longest stream key, with a slash in place of its NUL, and a star.
MAX_PATTERN_BYTES = 1025
# Total size of a token's scopes.
MAX_SCOPES_BYTES = 8 * 1024

_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


class ScopeError(ValueError):
    """A text is not a scope; the message says why."""


class Scope(NamedTuple):
    """A permission. `pattern` is the text after the colon, without a star at its end, and with a
    NUL for its first slash unless the verb is ``operate``; `is_prefix` says that the star was
    there."""

    verb: Verb
    pattern: bytes
    is_prefix: bool


def parse_scope(text: str) -> Scope:
    """The scope that a text states. Raises `ScopeError`."""
    verb, colon, pattern = text.partition(":")
    if not colon or verb not in VERBS:
        raise ScopeError(f"{_shown(text)} does not begin with a verb and a colon; verbs are {_ALL}")
    try:
        raw = pattern.encode()
    except UnicodeEncodeError:
        raise ScopeError(f"{_shown(text)} is not valid Unicode") from None
    if len(raw) > MAX_PATTERN_BYTES:
        raise ScopeError(f"{_shown(text)} has a pattern of more than {MAX_PATTERN_BYTES} bytes")
    if _CONTROL.search(pattern):
        raise ScopeError(f"{_shown(text)} has a control character or a backslash")
    is_prefix = raw.endswith(b"*")
    raw = raw.removesuffix(b"*")
    if b"*" in raw:
        raise ScopeError(f"{_shown(text)} has a star that is not its last character")
    if not raw and not is_prefix:
        raise ScopeError(f"{_shown(text)} has no pattern")
    if verb == "operate":
        _check_path(text, raw)
    else:
        raw = _in_keys(text, verb, raw, is_prefix=is_prefix)
    return Scope(verb, raw, is_prefix)


def parse_scopes(texts: Iterable[str]) -> list[Scope]:
    """The scopes of a token, within all limits. Raises `ScopeError`."""
    given = list(texts)
    if not given:
        raise ScopeError("a token without scopes permits nothing")
    if len(given) > MAX_SCOPES:
        raise ScopeError(f"there are more than {MAX_SCOPES} scopes")
    if sum(len(text.encode(errors="replace")) for text in given) > MAX_SCOPES_BYTES:
        raise ScopeError(f"the scopes together have more than {MAX_SCOPES_BYTES} bytes")
    return [parse_scope(text) for text in given]


def are_scopes(texts: Iterable[str]) -> bool:
    """Whether a token may have these scopes."""
    try:
        parse_scopes(texts)
    except ScopeError:
        return False
    return True


def _in_keys(text: str, verb: str, raw: bytes, *, is_prefix: bool) -> bytes:
    """Convert a pattern of streams to the form that is compared with keys."""
    bucket, slash, name = raw.partition(b"/")
    if not slash:
        if not is_prefix:
            raise ScopeError(
                f"{_shown(text)} has no slash: a bucket's streams are BUCKET/*, a stream is "
                "BUCKET/NAME, and one without a bucket is _default/NAME"
            )
        return raw
    if not bucket:
        raise ScopeError(f"{_shown(text)} begins with a slash: patterns are BUCKET/NAME, not paths")
    segments = name.split(b"/")
    # A star continues the last one; an empty last one ends the name of a bucket.
    whole = segments[:-1] if is_prefix or not name else segments
    if any(segment in (b"", b"..") for segment in whole) or bucket == b"..":
        raise ScopeError(f"{_shown(text)} can match nothing: a segment is empty or two dots")
    if verb in _OF_BUCKETS and name:
        raise ScopeError(f"{_shown(text)} can match nothing: {verb} is about whole buckets")
    return b"%b\0%b" % (bucket, name)


def _check_path(text: str, raw: bytes) -> None:
    if raw.startswith(b"/") or any(part in (b"", b"..") for part in raw.split(b"/")[:-1]):
        raise ScopeError(f"{_shown(text)} is not the path of an operation without its first slash")


def _shown(text: str) -> str:
    most = 80
    return repr(text if len(text) <= most else text[:most] + "…")


_ALL = ", ".join(VERBS)


class _Patterns:
    """Patterns for one verb. A look-up costs one hash and one binary search, however many there
    are: no prefix begins with another, so only the last one in order up to the target can match."""

    __slots__ = ("exact", "prefixes")

    def __init__(self, scopes: Iterable[Scope]) -> None:
        prefixes: list[bytes] = []
        exact = set()
        for scope in sorted(scopes, key=lambda each: (each.pattern, not each.is_prefix)):
            if prefixes and scope.pattern.startswith(prefixes[-1]):
                continue
            if scope.is_prefix:
                prefixes.append(scope.pattern)
            else:
                exact.add(scope.pattern)
        self.prefixes = prefixes
        self.exact = frozenset(exact)

    def match(self, target: bytes) -> bool:
        if target in self.exact:
            return True
        return self.match_all(target)

    def match_all(self, prefix: bytes) -> bool:
        """Whether all targets match that begin so."""
        at = bisect_right(self.prefixes, prefix)
        return at > 0 and prefix.startswith(self.prefixes[at - 1])


class NamePattern(NamedTuple):
    """Names of streams or buckets: `text` itself or, if `is_prefix`, all that begin with it."""

    text: bytes
    is_prefix: bool


class Scopes:
    """Compiled scopes: what one identity may do. What they do not permit is refused."""

    __slots__ = ("_by_verb",)

    def __init__(self, scopes: Iterable[Scope]) -> None:
        by_verb: dict[str, list[Scope]] = {}
        for scope in scopes:
            for verb in _permitted_by(scope):
                by_verb.setdefault(verb, []).append(scope)
        self._by_verb = {verb: _Patterns(given) for verb, given in by_verb.items()}

    def permit(self, verb: Verb, target: bytes) -> bool:
        """Whether a scope has the verb and matches the target."""
        patterns = self._by_verb.get(verb)
        return patterns is not None and patterns.match(target)

    def permit_all(self, verb: Verb, prefix: bytes) -> bool:
        """Whether `permit` is true for all targets that begin so."""
        patterns = self._by_verb.get(verb)
        return patterns is not None and patterns.match_all(prefix)

    def texts(self) -> list[str]:
        """Scopes that permit the same, as texts, in order; each has one verb."""
        return sorted(
            f"{verb}:{_shown_pattern(text, verb)}{star}"
            for verb, patterns in self._by_verb.items()
            for texts, star in ((patterns.prefixes, "*"), (patterns.exact, ""))
            for text in texts
        )

    def names(self, verb: Verb, bucket: bytes) -> list[NamePattern]:
        """The names of streams in a bucket for which `permit` is true, in order, each matched by
        one pattern only."""
        patterns = self._by_verb.get(verb)
        if patterns is None:
            return []
        base = bucket + b"\0"
        if patterns.match(base) and base not in patterns.exact:
            return [NamePattern(b"", True)]
        found = [NamePattern(text, True) for text in patterns.prefixes]
        found += [NamePattern(text, False) for text in patterns.exact if text != base]
        return sorted(
            NamePattern(each.text[len(base) :], each.is_prefix)
            for each in found
            if each.text.startswith(base)
        )

    def buckets(self, verb: Verb) -> list[NamePattern]:
        """The names of buckets for which `permit` is true, in order, each matched by one pattern
        only."""
        patterns = self._by_verb.get(verb)
        if patterns is None:
            return []
        found = []
        for text in patterns.prefixes + sorted(patterns.exact):
            bucket, nul, name = text.partition(b"\0")
            # A pattern of streams does not match their bucket.
            if not name:
                found.append(NamePattern(bucket, not nul))
        return sorted(found)


def _shown_pattern(pattern: bytes, verb: str) -> str:
    """A pattern, without its star, as it stands in the text of a scope."""
    raw = pattern if verb == "operate" else pattern.replace(b"\0", b"/", 1)
    return raw.decode()


def _permitted_by(scope: Scope) -> tuple[str, ...]:
    """The verbs that a scope gives on what its pattern matches."""
    if scope.verb != "admin":
        return (scope.verb,)
    # Paths of operations look like keys of streams, but only the whole is above both.
    return VERBS if scope.is_prefix and not scope.pattern else _OF_ADMIN
