"""Hostile values of every type that nodes send each other, derived from the types.

A struct that gets another field, or a union another member, is covered without a change here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from streamd.streams import keys

STREAMS = [keys.stream_key(b"b", name) for name in (b"s", b"t", b"u", b"v")]

_EDGES = [-(2**63), -(2**31), -1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
# Small ones meet what is there: ids, terms, records, positions.
_INTEGERS = st.one_of(st.integers(0, 12), st.sampled_from(_EDGES))
_BYTES = st.one_of(
    st.sampled_from(STREAMS),
    st.sampled_from(
        [b"", b"\0", b"no-nul-here", b"b", b"bucket", b"\0" + keys.number(1), b"b\0\xff", b"x" * 3]
    ),
    st.binary(max_size=4),
)
_TEXTS = st.one_of(
    st.sampled_from(["text/plain", "application/json", "", "a/b\r\nX: y", "2030-01-01T00:00:00Z"]),
    st.text(max_size=3),
)


def hostile(kind: object, **fields: st.SearchStrategy[object]) -> st.SearchStrategy[Any]:
    """Values of a type as a peer may send them. `fields` replace what structs have by name."""
    return _of(inspect.type_info(kind), fields)


def _of(
    found: inspect.Type, fields: dict[str, st.SearchStrategy[object]]
) -> st.SearchStrategy[object]:
    match found:
        case inspect.IntType(ge=ge, le=le):
            low, high = -(2**63) if ge is None else ge, 2**64 - 1 if le is None else le
            return _INTEGERS.filter(lambda number: low <= number <= high)
        case inspect.BoolType():
            return st.booleans()
        case inspect.StrType():
            return _TEXTS
        case inspect.BytesType():
            return _BYTES
        case inspect.NoneType():
            return st.none()
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.ListType(item_type=item):
            return st.lists(_of(item, fields), max_size=3)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_of(item, fields), max_size=3).map(tuple)
        case inspect.TupleType(item_types=items) if found.item_types:
            return st.tuples(*(_of(item, fields) for item in items))
        case inspect.UnionType(types=types):
            return st.one_of(*(_of(each, fields) for each in types))
        case inspect.StructType(cls=cls, fields=of_struct):
            return _struct(cls, of_struct, fields)
    raise NotImplementedError(found)


def _struct(
    cls: type[msgspec.Struct],
    of_struct: Sequence[inspect.Field],
    fields: dict[str, st.SearchStrategy[object]],
) -> st.SearchStrategy[object]:
    made = {one.name: fields.get(one.name, _of(one.type, fields)) for one in of_struct}
    return st.builds(cls, **made)
