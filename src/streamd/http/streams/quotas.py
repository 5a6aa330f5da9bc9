"""Answers to writes that a quota refuses."""

from __future__ import annotations

from streamd.http.protocol.messages import Response
from streamd.http.protocol.refusals import error_response
from streamd.protocol.problems import Problem
from streamd.streams.commands import Outcome, Result


def quota_answer(outcome: Outcome) -> Response:
    """The answer to a refusal by a quota."""
    match outcome.result:
        case Result.BUCKET_FULL:
            message = "the bucket keeps as many bytes as its limits allow"
            return error_response(Problem.QUOTA_EXCEEDED, message)
        case Result.STREAM_FULL:
            message = "the stream keeps as many bytes as the limits of its bucket allow"
            return error_response(Problem.QUOTA_EXCEEDED, message)
        case Result.TOO_MANY_STREAMS:
            return error_response(Problem.TOO_MANY_STREAMS)
        case _:
            raise AssertionError(outcome)
