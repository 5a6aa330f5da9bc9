"""Paths in the bodies of requests stand for streams, and streams have one such path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.streams.subscriptions.paths import key_of, normalised, path_of

NAMES = st.text(st.sampled_from("ab/é_."), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("x", b"_default\0x"),
        ("a/b", b"a\0b"),
        ("a/b/c", b"a\0b/c"),
        ("/a/b/", b"a\0b"),
        ("_default/x", b"_default\0x"),
        ("_default/x/y", b"_default\0x/y"),
        ("é/ü", "é\0ü".encode()),
    ],
)
def test_a_path_stands_for_a_stream(path: str, key: bytes) -> None:
    assert key_of(path) == key


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (b"_default\0x", "x"),
        (b"_default\0x/y", "_default/x/y"),
        (b"a\0b/c", "a/b/c"),
        (b"a\0\xff", "a/�"),
        (b"_default\0\xff", "�"),
        (b"no bucket", "no bucket/"),
    ],
)
def test_a_stream_has_one_path(key: bytes, path: str) -> None:
    assert path_of(key) == path


@given(st.sampled_from(["_default", "a", "b"]), NAMES.filter(lambda name: name.strip("/") == name))
def test_the_path_of_a_stream_leads_back_to_it(bucket: str, name: str) -> None:
    key = f"{bucket}\0{name}".encode()
    assert key_of(path_of(key)) == key


def test_a_path_is_compared_without_slashes_at_its_ends() -> None:
    assert normalised("//a/b/") == "a/b"


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        key_of("a/\ud800")
