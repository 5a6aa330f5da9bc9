"""Reports of any member of the cluster, which the node that is asked fetches."""

from __future__ import annotations

from quart import jsonify

from streamd.http.admin.operator import Answer, Operator
from streamd.node.reports import DEBUG_REPORTS, FACTS
from streamd.protocol.problems import Problem

_DIGITS = 18


async def report_facts(operator: Operator, node: str) -> Answer:
    """What a member knows about itself and its machine."""
    return jsonify(await operator.reports.of(member(operator, node), FACTS)), 200


async def report_for_debugging(operator: Operator, node: str, report: str) -> Answer:
    """One of `DEBUG_REPORTS` about a member."""
    node_id = member(operator, node)
    if report not in DEBUG_REPORTS:
        raise Problem.INVALID_REQUEST.error(f"a report is one of {', '.join(DEBUG_REPORTS)}")
    return jsonify(await operator.reports.of(node_id, report)), 200


def member(operator: Operator, node: str) -> int:
    """The id of a member of the cluster in a path. Raises `ProblemError`."""
    if not (node.isascii() and node.isdigit() and len(node) <= _DIGITS):
        raise Problem.INVALID_REQUEST.error("a node's id is a number")
    if not operator.reports.is_member(int(node)):
        raise Problem.NOT_A_MEMBER.error()
    return int(node)
