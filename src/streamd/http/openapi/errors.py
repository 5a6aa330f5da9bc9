"""Which errors an answer may have, from the table of problems."""

from __future__ import annotations

from collections.abc import Iterable

from streamd.protocol.problems import Problem

# By the keys that the operations name: status and code.
ERRORS = {f"{problem.status} {problem.code}": problem for problem in Problem}
# Errors that any request can meet: the first section of the table.
EVERYWHERE = tuple(ERRORS)[: tuple(Problem).index(Problem.NOT_FOUND)]

# Of all that the audit trail records before it happens.
ACTS = ("503 AUDIT_UNAVAILABLE",)
# Of a node that is not a member of its cluster.
OUTSIDE = ("503 NODE_REMOVED", "503 NODE_DATA_LOST", "503 NODE_NOT_ADDED")
# What web pages get from the administration of a node.
GUARDED_POST = ("415 UNSUPPORTED_MEDIA_TYPE",)
# Errors of methods that are not in the document.
ELSEWHERE = ("405 METHOD_NOT_ALLOWED", "501 METHOD_UNKNOWN")


def by_status(errors: Iterable[str]) -> dict[int, list[str]]:
    """The codes of errors, by status."""
    found: dict[int, list[str]] = {}
    for error in errors:
        status, code = error.split()
        found.setdefault(int(status), []).append(code)
    return found


SHARED = by_status((*EVERYWHERE, *ELSEWHERE))
