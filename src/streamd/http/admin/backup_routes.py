"""Routes for a backup of a running node: begin it, fetch its objects, end it."""

from __future__ import annotations

import msgspec
from quart import Response, jsonify
from quart_trio import QuartTrio

from streamd.backup.saving import BackupInProgress, NoSuchBackup
from streamd.http.admin.answers import Answer, answering, error_answer
from streamd.node.node import Node

_MSGPACK = "application/vnd.msgpack"


def add(app: QuartTrio, node: Node) -> None:
    """Add the routes to the operations app."""

    @app.post("/cluster/backup")
    @answering
    async def begin() -> Answer:
        if node.cold_tier is not None:
            text = "this node has a cold store, which holds its backup: see `streamd backup status`"
            return error_answer("HAS_COLD_STORE", text, 409)
        try:
            begun = await node.saver.begin()
        except BackupInProgress:
            text = "another backup of this node is under way, or was broken off within a minute"
            return error_answer("BACKUP_IN_PROGRESS", text, 409)
        return jsonify(msgspec.to_builtins(begun)), 201

    @app.get("/cluster/backup/<backup>/<number>")
    @answering
    async def saved(backup: str, number: str) -> Answer:
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            return _not_found()
        try:
            found = await node.saver.object(backup, int(number))
        except NoSuchBackup:
            return _not_found()
        return Response(msgspec.msgpack.encode(found), content_type=_MSGPACK), 200

    @app.delete("/cluster/backup/<backup>")
    @answering
    async def end(backup: str) -> Answer:
        try:
            await node.saver.end(backup)
        except NoSuchBackup:
            return _not_found()
        return Response(b""), 204


def _not_found() -> Answer:
    return error_answer("BACKUP_NOT_FOUND", "the backup has ended, or has no such object", 404)
