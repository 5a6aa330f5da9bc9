"""Whether MessagePack holds anything that the audit does not know.

Later releases may add fields at the end of structures, and a reader skips them. For an audit they
are unknown: they may be what a later release wrote, or what somebody added so that a checksum keeps
its value. The test is to encode what was decoded: the same bytes come out, except that fields which
an earlier release did not write yet are there as well, at the end of their structures.
"""

from __future__ import annotations

from typing import Any

import msgspec

from streamd_audit.errors import BAD_MSGPACK, UNKNOWN_FIELD, Damaged
from streamd_audit.framing import Buffer

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def check_known(value: object, content: Buffer, what: str, at: int | None = None) -> None:
    """Raises `Damaged` if `content`, of which `value` was decoded, has elements that are unknown
    (`UNKNOWN_FIELD`), or is not the MessagePack that a server writes."""
    known = _encode(value)
    # Python compares a view byte by byte, which took longer than all else that is done to an entry.
    if known == bytes(content):
        return
    where = "" if at is None else f"entry {at}: "
    said = _decode(content)
    if _encode(said) != content:
        raise Damaged(BAD_MSGPACK, f"{where}{what} is not encoded as a server does", at)
    if (odd := _beyond(said, _decode(known))) is not None:
        raise Damaged(UNKNOWN_FIELD, f"{where}{what} has {odd}", at)


def _beyond(said: Any, known: Any) -> str | None:
    """What is in `said` and not in `known`, which may have more at the end of arrays."""
    if isinstance(said, list) and isinstance(known, list):
        if len(said) > len(known):
            return f"{len(said) - len(known)} more elements than are known"
        return next(
            (
                odd
                for one, other in zip(said, known, strict=False)
                if (odd := _beyond(one, other)) is not None
            ),
            None,
        )
    if isinstance(said, dict) and isinstance(known, dict):
        if said.keys() - known.keys():
            return f"keys that are not known: {sorted(map(str, said.keys() - known.keys()))}"
        found = (_beyond(value, known[key]) for key, value in said.items())
        return next((odd for odd in found if odd is not None), None)
    return None if said == known and type(said) is type(known) else "another value than is known"
