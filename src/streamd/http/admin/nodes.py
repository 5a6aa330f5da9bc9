"""Reports of any member of the cluster, which the node that is asked fetches."""

from __future__ import annotations

from quart import jsonify

from streamd.http.admin.operator import Answer, Operator
from streamd.node.reports import FACTS
from streamd.protocol.problems import Problem

_DIGITS = 18


async def report_facts(operator: Operator, node: str) -> Answer:
    """What a member knows about itself and its machine."""
    return jsonify(await operator.reports.of(member(operator, node), FACTS)), 200


def member(operator: Operator, node: str) -> int:
    """The id of a member of the cluster in a path. Raises `ProblemError`."""
    if not (node.isascii() and node.isdigit() and len(node) <= _DIGITS):
        raise Problem.INVALID_REQUEST.error("a node's id is a number")
    if not operator.reports.is_member(int(node)):
        raise Problem.NOT_A_MEMBER.error()
    return int(node)
