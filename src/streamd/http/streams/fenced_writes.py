"""Answers to writes that a fence refuses (write fencing, section 8).

They tell a writer to stop, and the holder of a present or former claim which generation is in
force. A client without a token of the stream's subscription learns nothing about the stream.
"""

from __future__ import annotations

from msgspec import UNSET

from streamd.http.protocol.messages import Response
from streamd.http.protocol.refusals import error_response
from streamd.protocol.problems import Problem
from streamd.streams.commands import Append, Outcome
from streamd.streams.fencing.fences import Seal
from streamd.streams.offsets import Position
from streamd.streams.subscriptions.model import WakeReport

FENCED = b"Write-Fence: true\r\n"
_MESSAGES = {
    "sealed": "the claim of the write token is sealed on this stream",
    "marker": "the claim of the write token is no longer the present one, or its lease has ended",
    "epoch": "Producer-Epoch is not the generation of the write token's claim",
    "bound": "the producer has written under a claim: only a write token lets it go on",
}


def refusal(command: Append, outcome: Outcome) -> Response:
    """The answer to a write with the outcome `WRITE_FENCED` or `WRITE_OUT_OF_SCOPE`."""
    report = outcome.wake
    assert report is not None, "a fence says why it refuses"
    match report.reason:
        case "credential":
            return error_response(Problem.UNAUTHENTICATED, reason=report.reason)
        case "wake_token":
            message = "a token that acknowledges a wake permits no writes"
            return error_response(Problem.FORBIDDEN, message, reason=report.reason)
        case "scope":
            return error_response(Problem.FORBIDDEN, reason="credential")
        case "producer_required":
            message = "a fenced write requires Producer-Id, Producer-Epoch, and Producer-Seq"
            return error_response(Problem.INVALID_PRODUCER, message, reason=report.reason)
        case _:
            return _fenced(command, report)


def _fenced(command: Append, report: WakeReport) -> Response:
    head = b""
    if command.producer is not None:
        if report.generation:
            head = b"Producer-Epoch: %d\r\n" % report.generation
        # No gap expects what has come: a producer that takes this for one stops.
        seq = command.producer.seq
        head += b"Producer-Expected-Seq: %d\r\nProducer-Received-Seq: %d\r\n" % (seq, seq)
    return error_response(
        Problem.FENCED,
        _MESSAGES[report.reason],
        head,
        reason=report.reason,
        generation=report.generation or UNSET,
        current_holder=report.holder or UNSET,
    )


def seal_head(seal: Seal | None) -> bytes:
    """The header lines about a stream's latest seal."""
    if seal is None:
        return b""
    offset = Position(seal.record, seal.byte).token()
    return b"Write-Fence-Sealed-Generation: %d\r\nWrite-Fence-Sealed-Offset: %b\r\n" % (
        seal.generation,
        offset,
    )
