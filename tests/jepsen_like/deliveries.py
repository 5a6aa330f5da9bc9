"""Whether a live reader got every acknowledged append, once, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.jepsen_like.history import Operation

_SHOWN = 6
_CONTEXT = 60


def fault_in_delivery(operations: Sequence[Operation], reader: str, stream: str) -> str:
    """The faults of `reader`'s deliveries of `stream`, with the operations that prove them; empty
    without faults.

    The reader came at the stream's start, and ended after the last acknowledgement had returned
    and it had been given all there was then. What it may lack are appends of unknown outcome that
    took effect afterwards.
    """
    of_stream = [o for o in operations if o.stream == stream]
    final = [o.data for o in of_stream if o.kind == "final_read" and o.outcome == "ok"][-1]
    given = [o for o in of_stream if (o.client, o.kind, o.outcome) == (reader, "deliver", "ok")]
    delivered = "".join(o.data for o in given)
    if not final.startswith(delivered):
        return _diverged(final, given)
    appends = [o for o in of_stream if o.kind == "append" and o.payload]
    lacking = rest = final[len(delivered) :]
    for append in appends:
        if append.outcome == "unknown":
            rest = rest.replace(append.payload, "", 1)
    if not rest:
        return ""
    attempts = [o for o in of_stream if o.client == reader]
    return "\n".join(
        [
            f"{reader} was given {len(delivered)} of {len(final)} bytes, and lacks {rest[:200]!r}",
            *_told("what it lacks", [a for a in appends if a.payload in lacking]),
            *_told("its last pieces and attempts", attempts[-_SHOWN:]),
        ]
    )


def _diverged(final: str, given: Sequence[Operation]) -> str:
    """The first piece that differs from the stream at the place where the reader should
    continue."""
    place = 0
    for number, piece in enumerate(given):
        if not final.startswith(piece.data, place):
            was, expected = piece.data[:_CONTEXT], final[place : place + _CONTEXT]
            verdict = f"was given {was!r} where the stream goes on with {expected!r}"
            up_to_there = _told("up to there", given[max(0, number - _SHOWN + 1) : number + 1])
            return "\n".join([f"{piece.client} {verdict}, at byte {place}", *up_to_there])
        place += len(piece.data)
    raise AssertionError("it is what stands in the stream")


def _told(what: str, operations: Iterable[Operation]) -> list[str]:
    shown = list(operations)
    left_out = f" ({len(shown) - _SHOWN} more)" if len(shown) > _SHOWN else ""
    return [f"{what}:{left_out}", *(f"  {operation}" for operation in shown[:_SHOWN])]
