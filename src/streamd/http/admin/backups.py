"""A backup of a running node: begin it, fetch its objects, end it."""

from __future__ import annotations

import msgspec
from quart import Response, jsonify

from streamd.backup.saving import NoSuchBackup
from streamd.http.admin.operator import Answer, Operator
from streamd.protocol.problems import Problem

_MSGPACK = "application/vnd.msgpack"


async def begin(operator: Operator) -> Answer:
    """Begin a backup of the node as of now."""
    if operator.node.cold_tier is not None:
        raise Problem.HAS_COLD_STORE.error()
    return jsonify(msgspec.to_builtins(await operator.node.saver.begin())), 201


async def saved(operator: Operator, backup: str, number: str) -> Answer:
    """The next object of a backup, or the last one again."""
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise NoSuchBackup
    found = await operator.node.saver.object(backup, int(number))
    return Response(msgspec.msgpack.encode(found), content_type=_MSGPACK), 200


async def end(operator: Operator, backup: str) -> Answer:
    """End a backup."""
    await operator.node.saver.end(backup)
    return Response(b""), 204
