"""A proof shows its record to both verifiers, and a forged one to neither."""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.proofs.record_proofs import Claim
from streamd_audit import proof as verifier
from tests.proofs.corpus import MadeLog, encoded
from tests.proofs.forging import (
    OTHER_RECORD,
    bits,
    fields,
    flipped,
    is_unproved,
    lists,
    put,
    value_at,
)
from tests.proofs.verifiers import Question, Verifiers, both
from tests.support.seeds import first_seed, one_each

LIMIT_BYTES = 4096
LOG = MadeLog(7)
# Other commands, and the same keys.
OTHER_LOG = MadeLog(8)
OTHER_LOG.privates, OTHER_LOG.first_index = LOG.privates, LOG.first_index
PROOFS = list(LOG.proofs())
HEADS = LOG.grown(21, 40)
SMALL = MadeLog(3, entries=9, keys=2)
NONE = b64encode(bytes(32)).decode()
SEED = first_seed()
# Each bit is changed in the long test, and some in the quick one.
every_bit = pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.long)])


@pytest.fixture(scope="module")
def verifiers() -> Iterator[Verifiers]:
    with both() as verifiers:
        yield verifiers


@pytest.mark.parametrize("seed", one_each(6, 1))
def test_every_record_of_a_log_is_proved(verifiers: Verifiers, seed: int) -> None:
    log = MadeLog(seed, entries=20)
    proofs = [one for size in (1, 7, 16, 20) for one in log.proofs(size)]
    answers = verifiers.all([("record", one.trusted, one.content) for one in proofs])
    assert len(proofs) > 50
    for one, answer in zip(proofs, answers, strict=True):
        assert answer is not None
        assert answer["record"] == b64encode(one.record).decode()
        told = (answer["stream"], answer["contentType"], answer["entry"])
        assert told == (one.stream, one.content_type, one.entry)


def test_a_proof_is_small() -> None:
    """In JSON, which has bytes in base64, beside the command itself."""
    for one in PROOFS:
        command = json.loads(one.content)["command"]["bytes"]
        assert len(one.content) <= LIMIT_BYTES + len(command)


@pytest.mark.parametrize("trusted", range(3))
def test_any_key_of_the_chain_may_be_the_trusted_one(verifiers: Verifiers, trusted: int) -> None:
    assert verifiers.record(PROOFS[0].content, f"  {LOG.public(trusted)}\n") is not None


def test_a_key_that_is_not_in_the_chain_is_not_trusted(verifiers: Verifiers) -> None:
    for trusted in ("", "streamd", MadeLog(8).public(0), LOG.public(0)[:-1]):
        assert verifiers.record(PROOFS[0].content, trusted) is None


@every_bit
def test_no_bit_of_a_proof_can_be_changed(verifiers: Verifiers, step: int) -> None:
    made = next(SMALL.proofs())
    document = json.loads(made.content)
    assert verifiers.record(made.content, made.trusted) is not None
    assert_refused(verifiers, "record", made.trusted, document, step)


@every_bit
def test_no_bit_of_two_heads_can_be_changed(verifiers: Verifiers, step: int) -> None:
    old, new = SMALL.grown(5, 9)
    trusted = SMALL.public(0)
    assert verifiers.heads(old, new, trusted) is not None
    both_heads = {"old": json.loads(old), "new": json.loads(new)}
    assert_refused(verifiers, "heads", trusted, both_heads, step)


def assert_refused(
    verifiers: Verifiers, what: str, trusted: str, document: dict[str, Any], step: int
) -> None:
    """That nothing is proved with another bit in any field, beside those that nobody proves."""
    paths = []
    questions = []
    places = [
        (path, bit) for path in fields(document) for bit in range(bits(value_at(document, path)))
    ]
    for path, bit in places[SEED % step :: step]:
        try:
            forged = put(document, path, flipped(value_at(document, path), bit))
        except UnicodeDecodeError:
            continue
        paths.append(path)
        questions.append(question(what, trusted, forged))
    assert len(questions) * step > 1000
    for path, answer in zip(paths, verifiers.all(questions), strict=True):
        if is_unproved(path):
            assert answer is not None, path
        elif path == OTHER_RECORD and answer is not None:
            pass  # Both verifiers agree on which record it is.
        else:
            assert answer is None, path


def question(what: str, trusted: str, document: dict[str, Any]) -> Question:
    if what == "heads":
        return (what, trusted, encoded(document["old"]), encoded(document["new"]))
    return (what, trusted, encoded(document))


@given(data=st.data())
def test_no_list_can_be_changed(verifiers: Verifiers, data: st.DataObject) -> None:
    """Elements that are swapped, left out, repeated or added: of the paths, and the keys."""
    made = data.draw(st.sampled_from(PROOFS))
    document = json.loads(made.content)
    path = data.draw(st.sampled_from(list(lists(document))))
    present = value_at(document, path)
    other = b64encode(data.draw(st.binary(min_size=32, max_size=32))).decode()
    at = data.draw(st.integers(0, len(present)))
    changed = [
        [*present[:at], *present[at + 1 :]],
        [*present[:at], other, *present[at:]],
        [*present[:at], *present[:1], *present[at:]],
        data.draw(st.permutations(present)),
        [],
    ]
    forged = data.draw(st.sampled_from([one for one in changed if one != present]))
    assert verifiers.record(encoded(put(document, path, forged)), made.trusted) is None


@given(data=st.data())
def test_no_field_can_be_of_another_kind(verifiers: Verifiers, data: st.DataObject) -> None:
    made = data.draw(st.sampled_from(PROOFS))
    document = json.loads(made.content)
    paths = [*fields(document), *lists(document), ("head",), ("entry",)]
    path = data.draw(st.sampled_from(paths))
    values: list[Any] = [
        None,
        True,
        "",
        "AA",
        "AA==\n",
        [],
        {},
        [None],
        -1,
        0.5,
        2**53,
        2**64,
        10**400,
    ]
    value = data.draw(st.sampled_from([one for one in values if one != value_at(document, path)]))
    answer = verifiers.record(encoded(put(document, path, value)), made.trusted)
    assert answer is None or is_unproved(path)


@given(data=st.data())
def test_no_number_can_be_another(verifiers: Verifiers, data: st.DataObject) -> None:
    made = data.draw(st.sampled_from(PROOFS))
    document = json.loads(made.content)
    names = [("entry", "index"), ("entry", "term"), ("entry", "count"), ("command", "number")]
    name = data.draw(st.sampled_from(names))
    number = data.draw(st.integers(0, 50) | st.integers(0, 2**53 - 1))
    if number != value_at(document, name):
        assert verifiers.record(encoded(put(document, name, number)), made.trusted) is None


@pytest.mark.parametrize("name", [("claim", "record"), ("entry", "index"), ("command", "number")])
def test_a_number_may_be_written_with_a_fraction_of_nothing(
    verifiers: Verifiers, name: tuple[str, str]
) -> None:
    """JSON has one kind of number, and a browser cannot tell them apart."""
    made = PROOFS[0]
    document = json.loads(made.content)
    expected = verifiers.record(made.content, made.trusted)
    document[name[0]][name[1]] = float(document[name[0]][name[1]])
    assert verifiers.record(encoded(document), made.trusted) == expected is not None
    document[name[0]][name[1]] += 0.5
    assert verifiers.record(encoded(document), made.trusted) is None


@pytest.mark.long
@given(data=st.data())
def test_no_part_can_be_from_another_proof(verifiers: Verifiers, data: st.DataObject) -> None:
    """Of the same log: its command, entry, path or claim; or a head before the entry, or of
    another log with the same keys."""
    made, other = (data.draw(st.sampled_from(PROOFS)) for _ in range(2))
    document, donor = json.loads(made.content), json.loads(other.content)
    part = data.draw(st.sampled_from(["claim", "entry", "command", "path"]))
    mixed = {**document, part: donor[part]}
    if document[part] != donor[part]:
        answer = verifiers.record(encoded(mixed), made.trusted)
        assert answer is None or (part == "claim" and answer["stream"] == made.stream)
    size = made.entry - LOG.first_index
    earlier = LOG.head(data.draw(st.integers(1, size))) if size else OTHER_LOG.head()
    for head in (earlier, OTHER_LOG.head(), MadeLog(9).head()):
        assert verifiers.record(encoded({**document, "head": head}), made.trusted) is None


def test_no_link_of_the_chain_of_keys_can_be_missing(verifiers: Verifiers) -> None:
    document = json.loads(PROOFS[0].content)
    keys = document["head"]["keys"]
    first, second, last = keys
    chains = [[], [first, second], [second, last], [first, last], [last], [first, *keys]]
    chains += [[*keys, last], [second, first, last], [{**last, "signed_by": None}]]
    chains += [[first, second, {**last, "signed_by": first["key"]}]]
    for chain in chains:
        document["head"]["keys"] = chain
        assert verifiers.record(encoded(document), LOG.public(0)) is None


def test_a_witness_may_sign_the_head_as_well(verifiers: Verifiers) -> None:
    document = json.loads(PROOFS[0].content)
    for line in ("— witness.example 8R6Ww/AA", "— witness.example no base64", "nothing"):
        document["head"]["note"] += f"{line}\n"
        assert verifiers.record(encoded(document), LOG.public(0)) is not None


# What msgspec writes, and both read: whole numbers up to 64 bits.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEY = st.sampled_from([b"agents\0run/1", b"agents\0run\xff", b"agents/run/1", "agents\0run/1"])
KIND = st.none() | st.sampled_from(["", "text/plain", "application/json", " Application/JSON ;x"])
DATA = st.sampled_from([b"", b"abc", b"ab,", b"1,2,", "abc"])
LENGTHS = st.sampled_from(
    [[], [3], [2, 2], [0, 0, 4], [-1, 5], [4, 0], [2**64 - 1], [True, 2], [3.0]]
)
APPENDS = st.tuples(st.just("append"), KEY, KIND, DATA, LENGTHS)
SETTINGS = st.lists(KIND, max_size=2)
CREATES = st.tuples(
    st.just("create"), KEY, SETTINGS, VALUES, DATA, LENGTHS, VALUES, VALUES, VALUES, KIND
)
COMMANDS = st.builds(lambda begin, more: [*begin, *more], APPENDS | CREATES, st.lists(VALUES))
DOCUMENTS = VALUES.map(lambda value: msgspec.json.encode(value, enc_hook=str))


@pytest.mark.long
@given(
    command=COMMANDS | VALUES,
    cut=st.integers(0, 9),
    record=st.integers(0, 3),
)
def test_both_read_what_a_cluster_may_sign(
    verifiers: Verifiers, command: object, cut: int, record: int
) -> None:
    """A command may be anything: a later release's, or a liar's."""
    content = msgspec.msgpack.encode(command)
    content = content[: len(content) - cut] if cut < 3 else content + bytes(cut == 3)
    proof = LOG.proof_of_bytes(content, Claim("agents/run/1", "", record))
    verifiers.record(proof, LOG.public(0))  # This asserts that they agree.


@given(content=st.binary() | st.text().map(str.encode) | DOCUMENTS)
def test_a_file_may_hold_anything(verifiers: Verifiers, content: bytes) -> None:
    assert verifiers.record(content, LOG.public(0)) is None
    assert verifiers.heads(content, HEADS[1], LOG.public(0)) is None
    assert verifiers.heads(HEADS[0], content, LOG.public(0)) is None


@pytest.mark.parametrize("nested", [b"[" * 10**6, b'{"format":' * 10**5, b'{"head":[' * 10**5])
def test_a_file_may_be_nested_deeply(verifiers: Verifiers, nested: bytes) -> None:
    assert verifiers.record(nested, LOG.public(0)) is None


@pytest.mark.parametrize("most", [9, pytest.param(24, marks=pytest.mark.long)])
def test_heads_of_a_log_that_grows_are_consistent(verifiers: Verifiers, most: int) -> None:
    pairs = [(old, size) for size in range(1, most + 1) for old in range(1, size + 1)]
    questions: list[Question] = [("heads", LOG.public(0), *LOG.grown(*pair)) for pair in pairs]
    for (old, size), answer in zip(pairs, verifiers.all(questions), strict=True):
        assert answer is not None
        assert [head["size"] for head in answer["heads"]] == [old, size]


@pytest.mark.long
@given(data=st.data())
def test_heads_of_another_log_are_not(verifiers: Verifiers, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    old, new = LOG.grown(data.draw(st.integers(1, size)), size)
    later = json.loads(new)
    path = later["consistency"]
    at = data.draw(st.integers(0, len(path)))
    more = data.draw(st.lists(st.sampled_from([*path, NONE])))
    path[at : at + data.draw(st.integers(0, 1))] = more
    forged = [(old, encoded(later))] if later != json.loads(new) else []
    forged.append((old, encoded({**json.loads(new), **OTHER_LOG.head(size)})))
    forged += [(encoded(LOG.head(size + 1)), new)] if size < 40 else []
    for earlier, after in forged:
        assert verifiers.heads(earlier, after, LOG.public(0)) is None


def test_a_proof_is_verified_quickly() -> None:
    """The figure is printed; a busy machine may take longer than the 5 ms that it should be."""
    begin = time.perf_counter()
    for one in PROOFS:
        verifier.verify_record(one.content, one.trusted)
    taken_ms = (time.perf_counter() - begin) * 1000 / len(PROOFS)
    print(f"verified in {taken_ms:.2f} ms each", file=sys.stderr)
    assert taken_ms > 0


def test_the_verifier_can_be_read_in_ten_minutes() -> None:
    lines = Path(verifier.__file__).read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 200
