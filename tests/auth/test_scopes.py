"""Scopes: what a text may say, and what its pattern matches."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.auth.scopes import (
    MAX_PATTERN_BYTES,
    MAX_SCOPES,
    MAX_SCOPES_BYTES,
    VERBS,
    NamePattern,
    ScopeError,
    Scopes,
    parse_scope,
    parse_scopes,
)

STREAM_VERBS = [verb for verb in VERBS if verb not in ("operate", "list")]

buckets = st.text("ab_-", min_size=1, max_size=3)
names = st.lists(st.text("ab.*é ", min_size=1, max_size=3), min_size=1, max_size=3).map("/".join)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Patterns near the targets, in all their forms."""
    bucket, name = draw(buckets), draw(names).replace("*", "-")
    form = draw(st.sampled_from(["*", "b*", "b/", "b/*", "b/n", "b/n*"]))
    return form.replace("n", "\0").replace("b", bucket).replace("\0", name)


def key(bucket: str, name: str) -> bytes:
    return f"{bucket}\0{name}".encode()


def scopes_of(*texts: str) -> Scopes:
    return Scopes(parse_scopes(texts))


def is_matched(pattern: str, target: str) -> bool:
    """The rule as the documentation states it, on texts."""
    return target.startswith(pattern[:-1]) if pattern.endswith("*") else target == pattern


@given(st.lists(patterns(), min_size=1, max_size=8), buckets, names)
@example(["a/b*", "a/b", "a/ba"], "a", "ba")
@example(["a*", "a/"], "a", "b")
@example(["aa/b", "a*"], "aa", "b")
def test_a_target_is_permitted_if_a_pattern_is_its_text_or_begins_it(
    given_patterns: list[str], bucket: str, name: str
) -> None:
    try:
        compiled = scopes_of(*(f"read:{pattern}" for pattern in given_patterns))
    except ScopeError:
        return
    expected = any(is_matched(pattern, f"{bucket}/{name}") for pattern in given_patterns)
    assert compiled.permit("read", key(bucket, name)) == expected
    of_bucket = any(is_matched(pattern, f"{bucket}/") for pattern in given_patterns)
    assert compiled.permit("read", key(bucket, "")) == of_bucket


@given(st.lists(patterns(), min_size=1, max_size=8), buckets, names, names)
@example(["a/b*"], "a", "b", "c")
@example(["a/b"], "a", "b", "")
def test_all_targets_with_a_beginning_are_permitted_only_by_a_pattern_that_begins_it(
    given_patterns: list[str], bucket: str, name: str, further: str
) -> None:
    try:
        compiled = scopes_of(*(f"read:{pattern}" for pattern in given_patterns))
    except ScopeError:
        return
    beginning = key(bucket, name)
    covering = [one for one in given_patterns if one.endswith("*")]
    expected = any(f"{bucket}/{name}".startswith(one[:-1]) for one in covering)
    assert compiled.permit_all("read", beginning) == expected
    if expected:
        assert compiled.permit("read", beginning + further.encode())
    assert compiled.permit_all("append", beginning) is False


@given(
    st.lists(st.tuples(st.sampled_from(VERBS), patterns()), min_size=1, max_size=8), buckets, names
)
def test_the_texts_of_compiled_scopes_permit_the_same(
    given_scopes: list[tuple[str, str]], bucket: str, name: str
) -> None:
    try:
        compiled = scopes_of(*(f"{verb}:{pattern}" for verb, pattern in given_scopes))
    except ScopeError:
        return
    texts = [text.split(":", 1) for text in compiled.texts()]
    for verb in VERBS:
        shown = [pattern for other, pattern in texts if other == verb]
        for target in (f"{bucket}/{name}", f"{bucket}/"):
            raw = target.encode()
            wanted = raw if verb == "operate" else raw.replace(b"/", b"\0", 1)
            permitted = any(is_matched(pattern, target) for pattern in shown)
            assert permitted == compiled.permit(verb, wanted), (verb, target)


@given(st.lists(patterns(), min_size=1, max_size=8), buckets, st.lists(names, max_size=8))
def test_the_names_of_a_bucket_are_those_of_permitted_streams(
    given_patterns: list[str], bucket: str, listed: list[str]
) -> None:
    try:
        compiled = scopes_of(*(f"read:{pattern}" for pattern in given_patterns))
    except ScopeError:
        return
    found = compiled.names("read", bucket.encode())
    for name in listed:
        matching = [
            one
            for one in found
            if (name.encode().startswith(one.text) if one.is_prefix else name.encode() == one.text)
        ]
        assert len(matching) == compiled.permit("read", key(bucket, name))
    assert found == sorted(found)


def test_the_buckets_that_scopes_permit_to_list_are_in_order() -> None:
    compiled = scopes_of(
        "list:b*", "list:agents/*", "list:a/", "list:bees/", "admin:tenant/run-*", "read:x/*"
    )
    assert compiled.buckets("list") == [
        NamePattern(b"a", False),
        NamePattern(b"agents", False),
        NamePattern(b"b", True),
    ]
    assert scopes_of("admin:*", "list:b/").buckets("list") == [NamePattern(b"", True)]
    assert scopes_of("read:*").buckets("list") == []


@given(st.text(max_size=40) | st.builds("{}:{}".format, st.sampled_from(VERBS), st.text()))
@example("read:\ud800")
@example("read:a/\0*")
def test_a_text_is_a_scope_or_refused(text: str) -> None:
    try:
        scope = parse_scope(text)
    except ScopeError:
        return
    assert scope.verb in VERBS
    assert text.endswith("*") == scope.is_prefix
    assert scope.pattern.count(b"\0") <= 1


@given(st.sampled_from(STREAM_VERBS), buckets, names, buckets, names, st.sampled_from(["", "*"]))
def test_a_pattern_with_a_slash_never_matches_another_bucket(
    verb: str, bucket: str, name: str, other: str, other_name: str, star: str
) -> None:
    try:
        compiled = scopes_of(f"{verb}:{bucket}/{name.replace('*', '')}{star}")
    except ScopeError:
        return
    if other != bucket:
        assert not any(compiled.permit(one, key(other, other_name)) for one in VERBS)


@given(st.sampled_from(VERBS), st.sampled_from(VERBS), buckets, names)
def test_a_scope_permits_only_its_verb_and_admin_all(
    given_verb: str, asked: str, bucket: str, name: str
) -> None:
    compiled = scopes_of(f"{given_verb}:*")
    permitted = compiled.permit(asked, key(bucket, name))  # type: ignore[arg-type]
    assert permitted == (given_verb in (asked, "admin"))


@pytest.mark.parametrize("pattern", ["cluster/*", "cluster/status", "cluster*", "c*"])
def test_admin_of_streams_permits_no_operation_with_a_path_like_theirs(pattern: str) -> None:
    """``/v1/stream/cluster/status`` is a stream; ``/cluster/status`` is the node's."""
    compiled = scopes_of(f"admin:{pattern}")
    assert not compiled.permit("operate", b"cluster/status")
    assert compiled.permit("read", b"cluster\0status")


@pytest.mark.parametrize("pattern", ["*", "cluster/*", "cluster/status"])
def test_operate_permits_no_stream_with_a_path_like_an_operations(pattern: str) -> None:
    compiled = scopes_of(f"operate:{pattern}")
    assert compiled.permit("operate", b"cluster/status")
    assert not any(compiled.permit(verb, b"cluster\0status") for verb in VERBS if verb != "operate")


def test_the_root_scope_permits_everything() -> None:
    compiled = scopes_of("admin:*")
    for verb in VERBS:
        assert compiled.permit(verb, b"auth/tokens" if verb == "operate" else b"bucket\0a/b")


def test_case_matters() -> None:
    compiled = scopes_of("read:agents/Run-*")
    assert compiled.permit("read", b"agents\0Run-1")
    assert not compiled.permit("read", b"agents\0run-1")


def test_a_bucket_is_not_matched_by_the_prefix_of_its_streams() -> None:
    compiled = scopes_of("admin:agents/run-*")
    assert not compiled.permit("admin", b"agents\0")


def test_the_star_of_a_stream_name_is_a_character() -> None:
    compiled = scopes_of("read:agents/run*")
    assert compiled.permit("read", b"agents\0run*")
    assert compiled.permit("read", b"agents\0run*x")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin with a verb"),
        ("read", "does not begin with a verb"),
        ("Read:*", "does not begin with a verb"),
        ("write:*", "does not begin with a verb"),
        (" read:*", "does not begin with a verb"),
        ("read:", "has no pattern"),
        ("read:agents", "has no slash"),
        ("read:/agents/*", "begins with a slash"),
        ("read:a*/b", "a star that is not its last"),
        ("read:agents/**", "a star that is not its last"),
        ("read:agents//x", "can match nothing"),
        ("read:agents/../x", "can match nothing"),
        ("read:agents/x/", "can match nothing"),
        ("read:agents/a\\b", "control character"),
        ("read:agents/a\nb", "control character"),
        ("read:agents\0b*", "control character"),
        ("read:" + "a" * (MAX_PATTERN_BYTES + 1), "more than 1025 bytes"),
        ("list:agents/run-*", "about whole buckets"),
        ("operate:/metrics", "without its first slash"),
        ("operate:cluster/../auth", "without its first slash"),
    ],
)
def test_a_wrong_scope_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ScopeError, match=why):
        parse_scope(text)


@pytest.mark.parametrize("pattern", ["agents/", "agents/*", "agents*", "*"])
def test_a_bucket_may_be_listed_by_a_pattern_that_matches_it(pattern: str) -> None:
    compiled = scopes_of(f"list:{pattern}")
    assert compiled.permit("list", b"agents\0")


def test_a_token_has_a_limited_number_of_scopes() -> None:
    with pytest.raises(ScopeError, match="without scopes"):
        parse_scopes([])
    assert len(parse_scopes(["read:*"] * MAX_SCOPES)) == MAX_SCOPES
    with pytest.raises(ScopeError, match="more than 100"):
        parse_scopes(["read:*"] * (MAX_SCOPES + 1))
    with pytest.raises(ScopeError, match="together"):
        parse_scopes([f"read:a/{'b' * 900}"] * (MAX_SCOPES_BYTES // 900 + 1))


def test_overlapping_patterns_list_each_name_once() -> None:
    compiled = scopes_of(
        "read:agents/run-*", "read:agents/run-1", "read:agents/run-1*", "read:agents/x"
    )
    assert compiled.names("read", b"agents") == [
        NamePattern(b"run-", True),
        NamePattern(b"x", False),
    ]
    assert compiled.names("append", b"agents") == []
    assert scopes_of("read:agents/", "read:agents/*").names("read", b"agents") == [
        NamePattern(b"", True)
    ]
