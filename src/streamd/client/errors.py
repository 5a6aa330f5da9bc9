"""Errors of the client, by the stable codes of the API (docs/api.md)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from streamd.protocol.headers import (
    ETAG,
    PRODUCER_EPOCH,
    PRODUCER_EXPECTED_SEQ,
    STREAM_CLOSED,
    STREAM_EARLIEST_OFFSET,
)
from streamd.protocol.problems import Problem

NOT_OURS = "the answer is not streamd's"
_MAX_DIGITS = 19  # of 64 bits
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_NO_DETAILS: Mapping[str, Any] = MappingProxyType({})


class Unsendable(ValueError):
    """A URL or a header has characters that HTTP cannot carry. Nothing was sent."""


class StreamdError(Exception):
    """Any failure of a request. `status` is None if no server answered; `details` is what the
    answer's error has besides its code and message."""

    def __init__(
        self,
        code: str,
        message: str,
        status: int | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        details: Mapping[str, Any] = _NO_DETAILS,
    ) -> None:
        super().__init__(code, message, status, dict(headers), dict(details))
        self.code = code
        self.message = message
        self.status = status
        self.headers = headers or {}  # A mapping proxy cannot be pickled.
        self.details = details or {}

    def __str__(self) -> str:
        what = self.code if self.status is None else f"{self.status} {self.code}"
        return f"{what}: {self.message}" if self.message else what


class Unreachable(StreamdError):
    """No server answered, or could serve the request, within the time for retries."""

    def __init__(self, message: str) -> None:
        super().__init__("UNREACHABLE", message)
        self.args = (message,)


class OutcomeUnknown(StreamdError):
    """The write may have taken effect or not: the answer was lost, or the server does not know."""


class Refused(StreamdError):
    """A server refused the request; the subclass says why, or the code where there is none."""


class NotFound(Refused):
    """What the request names does not exist."""


class StreamNotFound(NotFound):
    """The stream does not exist, or has expired."""


class BucketNotFound(NotFound):
    """The bucket does not exist."""


class SnapshotNotFound(NotFound):
    """The stream has no snapshot there."""


class SubscriptionNotFound(NotFound):
    """The subscription does not exist, or was deleted."""


class StreamReplaced(StreamdError):
    """Another stream has the name of the one that is read, or the cluster was restored from a
    backup: the offset means nothing there. Read it from its start."""


class MessageMismatch(ValueError):
    """A message of a JSON stream does not fit the `type` that it was read as.

    `stream` is the stream's name, `position` the place after the message, `reason` what does not
    fit, and `data` the message's JSON text. The iteration that raised it goes on with the next
    message, and another one does so from `position` on.
    """

    def __init__(self, stream: str, position: str, reason: str, data: bytes) -> None:
        super().__init__(stream, position, reason, data)
        self.stream = stream
        self.position = position
        self.reason = reason
        self.data = data

    def __str__(self) -> str:
        return f"{self.stream}: the message before {self.position} does not fit: {self.reason}"


class ConsumerFenced(StreamdError):
    """Another consumer of this name has begun: its positions are kept, and this one's no longer."""

    def __init__(self, consumer: str) -> None:
        super().__init__(
            "CONSUMER_FENCED", f"another process that runs consumer {consumer} took over"
        )
        self.args = (consumer,)


class StreamGone(Refused):
    """The stream was deleted; its forks still read it."""


class OffsetGone(Refused):
    """The offset lies before a snapshot. Start from the bootstrap, or at `earliest_offset`."""

    @property
    def earliest_offset(self) -> str | None:
        """The first offset that can still be read."""
        return self.headers.get(STREAM_EARLIEST_OFFSET)


class StreamClosed(Refused):
    """The stream is closed and takes no appends."""


class AlreadyExists(Refused):
    """A stream or bucket of this name exists with other settings."""


class BucketNotEmpty(Refused):
    """Only an empty bucket can be deleted."""


class ContentTypeMismatch(Refused):
    """The stream has another content type."""


class SequenceConflict(Refused):
    """`Stream-Seq` is not greater than the last one."""


class SequenceGap(Refused):
    """The server misses requests of this producer: the stream was replaced while it appended."""

    @property
    def expected(self) -> int:
        """The number that the server expects next."""
        return number(self.headers.get(PRODUCER_EXPECTED_SEQ)) or 0


class ProducerFenced(Refused):
    """Another producer took over this producer's id, with a later epoch."""

    @property
    def epoch(self) -> int | None:
        """The epoch in force."""
        return number(self.headers.get(PRODUCER_EPOCH))


class Fenced(Refused):
    """The wake is over: its lease has ended, or another worker has the subscription now.

    `reason` is the rule that refused a write to a fenced stream.
    """

    @property
    def reason(self) -> str | None:
        """Why a write was refused; None for another request."""
        return _text(self.details.get("reason"))

    @property
    def current_holder(self) -> str | None:
        """The worker that has the subscription now, if the server tells."""
        return _text(self.details.get("current_holder"))


class LeaseLost(StreamdError):
    """The wake that this process worked on is over: its lease ended, or the subscription did.

    Another worker may work on it now. What was not acknowledged comes again with the next wake.
    """

    def __init__(self, message: str) -> None:
        super().__init__("LEASE_LOST", message)
        self.args = (message,)


class AlreadyClaimed(Refused):
    """Another worker has the subscription's wake."""

    @property
    def current_holder(self) -> str | None:
        """The name of that worker."""
        return _text(self.details.get("current_holder"))


class NoPendingWork(Refused):
    """Nothing has been appended to the subscription's streams since the last acknowledgement."""


class PreconditionFailed(Refused):
    """The stream is not in the state that `if_match` names; `etag` is its state."""

    @property
    def etag(self) -> str | None:
        """The state that the stream is in."""
        return self.headers.get(ETAG)


class InvalidRequest(Refused):
    """A name, an offset or a body is invalid."""


class InvalidOffset(InvalidRequest):
    """The offset is malformed; or one that is acknowledged is not between the last acknowledgement
    and the stream's end, or its stream not one of the subscription's."""


class WebhookUrlRejected(InvalidRequest):
    """The server does not call this URL: it is not https, or leads into a private network."""


class TooLarge(Refused):
    """The body exceeds the server's limit."""


class NotAuthenticated(Refused):
    """The token is missing, unknown, expired or revoked."""


class NotPermitted(Refused):
    """The token does not permit this."""


class QuotaExceeded(Refused):
    """A quota of the bucket or the stream is used up."""


class Unavailable(Refused):
    """The server cannot serve the request now; the time for retries is over, or must not begin."""


class TooManyRequests(Unavailable):
    """The client exceeds its rate."""


_BY_PROBLEM: dict[Problem, type[StreamdError]] = {
    Problem.STREAM_NOT_FOUND: StreamNotFound,
    Problem.BUCKET_NOT_FOUND: BucketNotFound,
    Problem.SNAPSHOT_NOT_FOUND: SnapshotNotFound,
    Problem.STREAM_GONE: StreamGone,
    Problem.STREAM_OFFSET_GONE: OffsetGone,
    Problem.STREAM_CLOSED: StreamClosed,
    Problem.STREAM_EXISTS: AlreadyExists,
    Problem.BUCKET_EXISTS: AlreadyExists,
    Problem.SNAPSHOT_EXISTS: AlreadyExists,
    Problem.BUCKET_NOT_EMPTY: BucketNotEmpty,
    Problem.CONTENT_TYPE_MISMATCH: ContentTypeMismatch,
    Problem.SEQUENCE_CONFLICT: SequenceConflict,
    Problem.SEQUENCE_GAP: SequenceGap,
    Problem.STALE_EPOCH: ProducerFenced,
    Problem.SUBSCRIPTION_NOT_FOUND: SubscriptionNotFound,
    Problem.SUBSCRIPTION_ALREADY_EXISTS: AlreadyExists,
    Problem.WEBHOOK_URL_REJECTED: WebhookUrlRejected,
    Problem.FENCED: Fenced,
    Problem.ALREADY_CLAIMED: AlreadyClaimed,
    Problem.NO_PENDING_WORK: NoPendingWork,
    Problem.INVALID_OFFSET_409: InvalidOffset,
    Problem.TOO_MANY_SUBSCRIPTIONS: QuotaExceeded,
    Problem.QUOTA_EXCEEDED: QuotaExceeded,
    Problem.TOO_MANY_STREAMS: QuotaExceeded,
    Problem.TOO_MANY_PRODUCERS: QuotaExceeded,
    Problem.OUTCOME_UNKNOWN: OutcomeUnknown,
    Problem.NO_ANSWER: Refused,  # of a node that is to join: a 502 of no proxy
}
_BY_CODE = {problem.code: kind for problem, kind in _BY_PROBLEM.items()}
_BY_STATUS: dict[int, type[StreamdError]] = {
    400: InvalidRequest,
    401: NotAuthenticated,
    403: NotPermitted,
    404: NotFound,
    412: PreconditionFailed,
    413: TooLarge,
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: QuotaExceeded,
}
# Proxies answer so, too, while they wait for a request or a server: try again.
_UNSETTLED = frozenset({408, 425})
# The protocol's refusal of what a server does not have (section 5.2).
_NOT_IMPLEMENTED = 501


def number(text: str | None) -> int | None:
    """The number in a header; None if it has none that a server counts to."""
    if text is None or len(text) > _MAX_DIGITS or not text.isdecimal():
        return None
    return int(text)


def refusal(
    status: int,
    code: str,
    message: str,
    headers: Mapping[str, str],
    details: Mapping[str, Any] = _NO_DETAILS,
) -> StreamdError:
    """The error for an answer's code, or else for its status."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, Refused)
    return kind(code, message, status, headers, details)


def foreign_refusal(
    method: str, status: int, reason: str, message: str, headers: Mapping[str, str]
) -> StreamdError:
    """The error for an answer without a body of ours: of another server of the protocol, whose
    headers say what it means (sections 5.2 and 5.2.1), or of a proxy, which may have passed the
    request on before it failed."""
    kind = _BY_STATUS.get(status, Refused)
    if status in _UNSETTLED or (status >= 500 and status != _NOT_IMPLEMENTED):
        kind = Unavailable
    elif status == 409:
        kind = _conflict(method, headers)
    elif status == 403 and PRODUCER_EPOCH in headers:
        kind = ProducerFenced
    return kind(reason, message, status, headers)


def is_unknown_route(refused: Refused) -> bool:
    """Whether a server of the protocol says that it has no such path: one of streamd's routes."""
    return refused.message == NOT_OURS and refused.status in (404, 405)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _conflict(method: str, headers: Mapping[str, str]) -> type[StreamdError]:
    if headers.get(STREAM_CLOSED, "").lower() == "true":
        return StreamClosed
    if PRODUCER_EXPECTED_SEQ in headers:
        return SequenceGap
    return AlreadyExists if method == "PUT" else Refused
