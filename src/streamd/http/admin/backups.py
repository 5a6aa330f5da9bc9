"""A backup of a running node: begin it, fetch its objects, end it."""

from __future__ import annotations

import msgspec
from quart import Response, jsonify

from streamd.backup.saving import BackupInProgress, NoSuchBackup
from streamd.http.admin.answers import Answer, error_answer
from streamd.http.admin.operator import Operator

_MSGPACK = "application/vnd.msgpack"


async def begin(operator: Operator) -> Answer:
    """Begin a backup of the node as of now."""
    if operator.node.cold_tier is not None:
        text = "this node has a cold store, which holds its backup: see `streamd backup status`"
        return error_answer("HAS_COLD_STORE", text, 409)
    try:
        begun = await operator.node.saver.begin()
    except BackupInProgress:
        text = "another backup of this node is under way, or was broken off within a minute"
        return error_answer("BACKUP_IN_PROGRESS", text, 409)
    return jsonify(msgspec.to_builtins(begun)), 201


async def saved(operator: Operator, backup: str, number: str) -> Answer:
    """The next object of a backup, or the last one again."""
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        return _not_found()
    try:
        found = await operator.node.saver.object(backup, int(number))
    except NoSuchBackup:
        return _not_found()
    return Response(msgspec.msgpack.encode(found), content_type=_MSGPACK), 200


async def end(operator: Operator, backup: str) -> Answer:
    """End a backup."""
    try:
        await operator.node.saver.end(backup)
    except NoSuchBackup:
        return _not_found()
    return Response(b""), 204


def _not_found() -> Answer:
    return error_answer("BACKUP_NOT_FOUND", "the backup has ended, or has no such object", 404)
