"""The rows of a state that the server wrote agree with one another, and others do not."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from streamd.streams import keys
from streamd.streams.model import Blob, Bucket, Header, Pack
from streamd_audit import balance
from streamd_audit.errors import Damaged
from streamd_audit.rows import read_row
from tests.spark.damages import Scene
from tests.spark.forging import Rows, edit_row, stream_row


def odd(rows: Rows) -> list[str]:
    """The accounts whose sides differ."""
    sums: Counter[tuple[str, bytes]] = Counter()
    for key, value in rows.items():
        for what, about, due, told in balance.shares(read_row(key, value)):
            sums[what, about] += due - told
    return sorted({what for (what, _), left in sums.items() if left})


@pytest.fixture
def rows(scene: Scene) -> Rows:
    return scene.folder.state()


def test_every_state_of_a_server_is_balanced(scene: Scene) -> None:
    for manifest in scene.folder.manifests():
        rows = scene.folder.rows(manifest)
        assert odd(rows) == []
        for key, value in rows.items():
            balance.check_row(0, read_row(key, value))


def test_every_account_is_used(rows: Rows) -> None:
    used = {
        share.what for key, value in rows.items() for share in balance.shares(read_row(key, value))
    }
    assert used == set(balance.KIND_OF)


@pytest.mark.parametrize(
    ("field", "account"),
    [
        ("hot_bytes", balance.HOT),
        ("cold_bytes", balance.COLD),
        ("streams", balance.STREAMS),
    ],
)
def test_totals_of_the_header_are_sums(rows: Rows, field: str, account: str) -> None:
    edit_row(rows, keys.HEADER, Header, **{field: 1})
    assert odd(rows) == [account]


def test_rows_that_others_determine_cannot_change_alone(rows: Rows) -> None:
    def changed(key: bytes, kind: type, **fields: object) -> list[str]:
        edited = dict(rows)
        edit_row(edited, key, kind, **fields)
        return odd(edited)

    blob = next(key for key in rows if key.startswith(keys.BLOB))
    pack = next(key for key in rows if key.startswith(keys.PACK))
    assert changed(b"bsmall", Bucket, size=1) == [balance.KEPT]
    assert changed(b"bsmall", Bucket, counted=9) == [balance.COUNTED]
    assert changed(blob, Blob, references=2) == sorted([balance.REFERENCES, balance.BODY])
    assert changed(pack, Pack, live=1) == sorted([balance.LIVE, balance.COLD])


@pytest.mark.parametrize(
    ("letter", "account"), [(keys.EXPIRY, balance.SWEEP), (keys.HOT, balance.FLUSH)]
)
def test_a_row_of_what_is_due_can_neither_go_nor_come(
    rows: Rows, letter: bytes, account: str
) -> None:
    key = next(key for key in rows if key.startswith(letter))
    less = {one: value for one, value in rows.items() if one != key}
    assert odd(less) == [account]
    assert odd({**rows, letter + bytes(8) + stream_row("agents/chat")[1:]: b""}) == [account]


def test_a_packs_row_names_the_pack_of_its_key(rows: Rows) -> None:
    names = sorted(key for key in rows if key.startswith(keys.PACK))
    row = read_row(names[0], rows[names[1]])
    with pytest.raises(Damaged, match="names"):
        balance.check_row(0, row)
    with pytest.raises(Damaged, match="names"):
        balance.check_row(1, read_row(names[0], rows[names[0]]))


def test_a_dead_pack_says_since_when(rows: Rows) -> None:
    key = min(key for key in rows if key.startswith(keys.PACK))
    pack = msgspec.msgpack.decode(rows[key], type=Pack)
    row = msgspec.msgpack.encode(Pack(pack.name, pack.size, 5, 3, 3))
    with pytest.raises(Damaged, match="dead since entry 3"):
        balance.check_row(0, read_row(key, row))


def test_a_row_that_a_node_keeps_for_itself_is_in_no_state() -> None:
    with pytest.raises(Damaged, match="keeps for itself"):
        balance.check_row(0, read_row(keys.dropped_key(4), keys.number(9)))
