"""Content types, and cutting JSON bodies into messages."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.streams import content
from streamd.streams.content import (
    NO_RECORDS,
    InvalidJson,
    Records,
    TooManyMessages,
    are_json_messages,
    is_json,
    is_text,
    json_message,
    media_type,
    same_media_type,
    split_body,
    split_json,
)


def messages(records: Records) -> list[bytes]:
    found = []
    start = 0
    for length in records.lengths:
        assert records.data[start + length - 1 : start + length] == b","
        found.append(records.data[start : start + length - 1])
        start += length
    assert start == len(records.data)
    return found


@pytest.mark.parametrize(
    ("content_type", "media"),
    [
        ("text/plain", "text/plain"),
        ("Text/PLAIN ; charset=utf-8", "text/plain"),
        (" application/json;a=b;c=d", "application/json"),
        ("", ""),
    ],
)
def test_a_media_type_is_lower_case_and_without_parameters(content_type: str, media: str) -> None:
    assert media_type(content_type) == media
    assert same_media_type(content_type, media)


def test_different_media_types_differ() -> None:
    assert not same_media_type("text/plain", "text/html")


def test_only_json_itself_is_kept_as_messages() -> None:
    assert is_json("Application/JSON; charset=utf-8")
    for other in ("application/x-ndjson", "application/ld+json", "text/json", ""):
        assert not is_json(other)


def test_json_and_text_travel_as_text() -> None:
    for content_type in ("application/json", "text/plain; charset=utf-8", "TEXT/csv"):
        assert is_text(content_type)
    for content_type in ("application/octet-stream", "image/png", "application/x-ndjson"):
        assert not is_text(content_type)


def test_a_body_that_is_not_json_is_one_record() -> None:
    assert split_body("text/plain", b"[1, 2]") == Records(b"[1, 2]", [6])


@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
def test_an_empty_body_has_no_records(content_type: str) -> None:
    assert split_body(content_type, b"") == NO_RECORDS


@pytest.mark.parametrize("value", [b"1", b'"text"', b"null", b'{"a": [1, 2]}', b"true"])
def test_a_value_is_one_message(value: bytes) -> None:
    assert messages(split_body("application/json", value)) == [value]


def test_an_array_is_flattened_by_one_level() -> None:
    assert messages(split_json(b'[1, [2, [3]], {"a": [4]}, []]')) == [
        b"1",
        b"[2, [3]]",
        b'{"a": [4]}',
        b"[]",
    ]


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b"\n[\t]\r\n"])
def test_an_empty_array_has_no_messages(body: bytes) -> None:
    assert split_json(body) == NO_RECORDS


def test_an_array_within_an_array_is_a_message_however_empty() -> None:
    assert messages(split_json(b"[[]]")) == [b"[]"]


@pytest.mark.parametrize(
    "number", [b"12345678901234567890123", b"0.10000000000000000000001", b"1E400", b"-0.0", b"1.0"]
)
def test_numbers_keep_their_digits(number: bytes) -> None:
    assert messages(split_json(b'[%b, {"n": %b}]' % (number, number))) == [
        number,
        b'{"n": %b}' % number,
    ]


def test_white_space_around_messages_is_removed_and_inside_them_kept() -> None:
    assert messages(split_json(b' \r\n[ {"a" :  1}\t,\n2 ] \n')) == [b'{"a" :  1}', b"2"]
    assert messages(split_json(b' \n{"a" :  1} \n')) == [b'{"a" :  1}']


def test_text_beyond_ascii_is_kept_unchanged() -> None:
    assert messages(split_json('["ü€", "\\u00fc"]'.encode())) == ['"ü€"'.encode(), b'"\\u00fc"']


@pytest.mark.parametrize(
    "body",
    [
        b" ",
        b"[",
        b"[1,]",
        b"[1 2]",
        b"[1]]",
        b"[1] 2",
        b"1,2",
        b"{",
        b'{"a"}',
        b'"open',
        b"nul",
        b"01",
        b"'x'",
        b'["\n"]',
        b"\xef\xbb\xbf[1]",
        b"[1.]",
        b"[-]",
        b"[1e]",
        b'["\\x"]',
        b'["\\u12"]',
        b'[{"a": 1,}]',
        b"[NaN]",
        b"[1]\0",
    ],
)
def test_malformed_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        split_json(body)


@pytest.mark.parametrize("body", [b'"\xff"', b'["\xc3"]', b'{"\xed\xa0\x80": 1}'])
def test_json_must_be_utf_8(body: bytes) -> None:
    with pytest.raises(InvalidJson, match="not UTF-8 at byte"):
        split_json(body)


@pytest.mark.parametrize("unit", [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_deeply_nested_json_is_refused(unit: tuple[bytes, bytes]) -> None:
    opening, closing = unit
    with pytest.raises(InvalidJson):
        split_json(opening * 100_000 + b"1" + closing * 100_000)


def test_moderate_nesting_is_kept() -> None:
    body = b"[" * 100 + b"]" * 100
    assert messages(split_json(body)) == [body[1:-1]]


_JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(values=st.lists(_JSON_VALUES, min_size=1), ascii_only=st.booleans())
def test_messages_between_brackets_are_the_array_again(
    values: list[object], ascii_only: bool
) -> None:
    body = json.dumps(values, ensure_ascii=ascii_only).encode()
    records = split_json(body)
    assert len(records.lengths) == len(values)
    assert json.loads(b"[" + records.data[:-1] + b"]") == values
    for message, value in zip(messages(records), values, strict=True):
        assert json.loads(message) == value


def test_a_large_array_is_cut_as_a_small_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(8)
    values = ["1", '"a,b]"', "[1, [2,3]]", '{"a": [4,5], "b":  ","}', '"\\"," ', " null", "[]"]
    arrays = (random.choices(values, k=random.randrange(1, 60)) for _ in range(300))
    bodies = [f"[{' ,'.join(array)}]".encode() for array in arrays]
    whole = [split_json(body) for body in bodies]
    monkeypatch.setattr(content, "SMALL_BYTES", 8)
    monkeypatch.setattr(content, "_FURTHER_BYTES", 1)
    assert [split_json(body) for body in bodies] == whole


@pytest.mark.parametrize(
    "body",
    [
        b"[1,1,1,1,1,1,1,1,]",
        b"[1,1,1,1, ,1,1,1,1,1,1,1]",
        b"[1,1,,1,1,1,1,1,1,1,1,1]",
        b"[1,1,1,1,1,1,1,1,1,1,1,1",
        b"[1,1,1,1,1,1],1,1,1,1,1,1]",
        b'[1,1,1,1,1,"1,1,1,1,1,1]',
        b"[1,1,1,1,1,[1,1,1,1,1,1]",
        b"[1,1,1,1,1,1,1,1,1,1]1",
        b"[                      ,]",
    ],
)
@pytest.mark.parametrize("small_bytes", [2, 3, 4, 5, 8])
def test_a_malformed_large_array_is_refused(
    body: bytes, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(content, "_FURTHER_BYTES", 1)
    with pytest.raises(InvalidJson):
        split_json(body)


def test_an_array_has_a_limit_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_MESSAGES", content.SMALL_BYTES)
    body = b"[" + b"1," * (content.SMALL_BYTES - 1) + b"1]"
    assert len(split_json(body).lengths) == content.SMALL_BYTES
    with pytest.raises(TooManyMessages):
        split_json(body[:-1] + b",1]")


def test_a_large_empty_array_has_no_messages() -> None:
    assert split_json(b"[" + b" " * 2 * content.SMALL_BYTES + b"]") == NO_RECORDS


# Halves of characters outside the basic plane, and everything similar to them.
HALVES = st.lists(
    st.text(st.sampled_from('\ud83d\ude00a\\u,[]"\n\ufffd'), max_size=8), min_size=1, max_size=8
)


@given(HALVES, st.sampled_from(["", " ", " \n\t"]))
def test_halved_characters_of_json_stringify_are_json(texts: list[str], space: str) -> None:
    sent = [json.dumps(text).encode() for text in texts]
    array = f"{space}[{space}{f'{space},{space}'.join(map(json.dumps, texts))}{space}]".encode()
    records = split_json(array)
    assert messages(records) == sent
    assert are_json_messages(records.data, records.lengths)
    assert json_message(array) == array.strip() + b","
    assert messages(split_json(sent[0])) == sent[:1]


def test_halved_characters_in_a_body_that_is_split_in_steps() -> None:
    random = Random(17)
    texts = ["".join(random.choices("\ud83d\ude00a\\,[", k=20)) for _ in range(4000)]
    sent = [json.dumps(text).encode() for text in texts]
    array = b"[%b]" % b",".join(sent)
    assert len(array) > 2 * content.SMALL_BYTES
    assert messages(split_json(array)) == sent


@pytest.mark.parametrize(
    "body",
    [rb"\ud83d", rb'"\ud83"', rb'["\ud83d]', rb'["\ud83d",]', rb'["\ud83d" 1]', b'"\xed\xa0\xbd"'],
)
def test_a_halved_character_does_not_make_malformed_json_valid(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        split_json(body)
