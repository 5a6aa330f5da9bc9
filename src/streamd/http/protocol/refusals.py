"""The answers that problems are; and the one place where errors of other parts become problems."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from streamd.audit_trail.trail import AuditUnavailable
from streamd.auth.scopes import ScopeError
from streamd.backup.record_search import Unprovable
from streamd.backup.saving import BackupInProgress, NoSuchBackup
from streamd.config.settings import ConfigError
from streamd.group.proposals import DiskLow, NotAMember, OutcomeUnknown, Unavailable
from streamd.http.protocol.messages import Response
from streamd.node.delivery.keyring import KeysSealed
from streamd.objectstore.errors import ColdError, ObjectCorrupt, ObjectMissing
from streamd.process.diagnostics import ProfileInProgress
from streamd.protocol.problems import Problem, ProblemError
from streamd.streams.content import UNDECODABLE

_JSON = msgspec.json.Encoder()
_ERROR_HEAD = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
# What the handlers of streams and buckets raise instead of an answer.
REFUSALS = (ProblemError, Unavailable, OutcomeUnknown, ColdError, Unprovable, KeysSealed)
# Of the classes of an exception the first counts that is here.
_PROBLEMS: dict[type[Exception], Problem] = {
    Unavailable: Problem.UNAVAILABLE,
    DiskLow: Problem.DISK_LOW,
    OutcomeUnknown: Problem.OUTCOME_UNKNOWN,
    ColdError: Problem.COLD_UNAVAILABLE,
    ObjectMissing: Problem.COLD_DATA_DAMAGED,
    ObjectCorrupt: Problem.COLD_DATA_DAMAGED,
    Unprovable: Problem.NOT_PROVABLE,
    KeysSealed: Problem.SUBSCRIPTION_KEYS_SEALED,
    AuditUnavailable: Problem.AUDIT_UNAVAILABLE,
    BackupInProgress: Problem.BACKUP_IN_PROGRESS,
    NoSuchBackup: Problem.BACKUP_NOT_FOUND,
    ProfileInProgress: Problem.PROFILE_IN_PROGRESS,
    ConfigError: Problem.INVALID_REQUEST,
    ScopeError: Problem.INVALID_REQUEST,
    **dict.fromkeys(UNDECODABLE, Problem.INVALID_REQUEST),
}
# What the handlers of operations raise instead of an answer.
OPERATORS_REFUSALS: tuple[type[Exception], ...] = (ProblemError, *_PROBLEMS)


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    """What went wrong: a stable code for programs, a message for people. Of a subscription that
    another worker has, who holds its lease in which generation; of a write that a fence refuses,
    the rule that does so."""

    code: str
    message: str
    reason: str | UnsetType = UNSET
    current_holder: str | UnsetType = UNSET
    generation: int | UnsetType = UNSET


class ErrorBody(msgspec.Struct):
    """The body of every error."""

    error: ErrorDetail


def error_response(
    problem: Problem,
    detail: str = "",
    head: bytes = b"",
    *,
    close: bool = False,
    reason: str | UnsetType = UNSET,
    generation: int | UnsetType = UNSET,
    current_holder: str | UnsetType = UNSET,
) -> Response:
    """The answer that a problem is: ``{"error":{"code","message"}}``. `detail` replaces its
    message, `head` is added to its own header lines, and what is set to the error."""
    message = detail or problem.message
    error = ErrorDetail(problem.code, message, reason, current_holder, generation)
    body = _JSON.encode(ErrorBody(error))
    return Response(problem.status, _ERROR_HEAD + problem.head + head, body, close)


def answer_to(error: Exception, *, close: bool = False) -> Response:
    """The answer to a request that raised one of these."""
    if isinstance(error, ProblemError):
        return error_response(
            error.problem, str(error), error.head, close=close, reason=error.reason or UNSET
        )
    if isinstance(error, NotAMember):
        return error_response(error.problem, str(error))
    problem = next(_PROBLEMS[kind] for kind in type(error).__mro__ if kind in _PROBLEMS)
    match error:
        case ColdError():
            detail = ""  # It names objects, which are not the client's business.
        case OutcomeUnknown():
            detail = f"{error}; it may have taken effect"
        case AuditUnavailable():
            detail = f"{problem.message}: {error}"
        case _:
            detail = str(error)
    return error_response(problem, detail)
