"""The administration of limits: a part of the operations app."""

from __future__ import annotations

from functools import partial
from urllib.parse import unquote

import msgspec
from quart import Response, request
from quart_trio import QuartTrio

from streamd.audit_trail.notes import note
from streamd.group.proposals import Unavailable
from streamd.http.admin.answers import Answer, answering, error_answer
from streamd.http.protocol.limit_bodies import AllLimitsBody, LimitsBody
from streamd.node.node import Node
from streamd.streams.checks import fault
from streamd.streams.commands import Result, SetLimits
from streamd.streams.limits import MAX_ROWS, Kind

_ENCODER = msgspec.json.Encoder()
_KINDS: dict[str, Kind] = {"buckets": "bucket", "identities": "identity"}
_FAULTS = {
    "name": "the name is that of no bucket or identity",
    "limits": "max_bytes, max_streams and max_stream_bytes are limits of buckets",
}


class LimitRoutes:
    """The handlers, over a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def list_all(self) -> Answer:
        await self._node.group.reads.catch_up()
        return _json(AllLimitsBody(self._bodies("bucket"), self._bodies("identity")))

    def _bodies(self, kind: Kind) -> dict[str, LimitsBody]:
        rows = self._node.group.state.limits.rows(kind)
        return {name: LimitsBody.of(rows[name]) for name in sorted(rows)}

    async def show(self, kind: Kind, name: str) -> Answer:
        name = unquote(name)
        await self._node.group.reads.catch_up()
        found = self._node.group.state.limits.get(kind, name)
        return _not_found() if found is None else _json(LimitsBody.of(found))

    async def set(self, kind: Kind, name: str) -> Answer:
        """Set all limits of a bucket or an identity."""
        body = msgspec.json.decode(await request.get_data(), type=LimitsBody)
        note(limits=msgspec.to_builtins(body))
        command = SetLimits(kind, unquote(name), body.limits())
        wrong = fault(command)
        if wrong is not None:
            return error_answer("INVALID_REQUEST", _FAULTS[wrong], 400)
        if not self._node.may_have_limits():
            raise Unavailable(
                "a member of the cluster has not said that it understands limits: all must run "
                "this release, and be connected, when the first limits are set"
            )
        if await self._propose(command) is Result.TOO_MANY_LIMITS:
            return error_answer("TOO_MANY_LIMITS", f"{MAX_ROWS} have limits", 409)
        return _json(body)

    async def clear(self, kind: Kind, name: str) -> Answer:
        """Clear the limits of a bucket or an identity."""
        name = unquote(name)
        await self._node.group.reads.catch_up()
        if self._node.group.state.limits.get(kind, name) is None:
            return _not_found()
        if await self._propose(SetLimits(kind, name)) is not Result.DELETED:
            return _not_found()
        return Response(b""), 204

    async def _propose(self, command: SetLimits) -> Result:
        """The result, once this node knows it."""
        outcome = await self._node.group.writes.propose(command)
        await self._node.group.reads.catch_up()
        return outcome.result


def add(app: QuartTrio, node: Node) -> None:
    """Add the routes to the operations app."""
    routes = LimitRoutes(node)
    app.add_url_rule(
        "/cluster/limits", endpoint="list limits", view_func=answering(routes.list_all)
    )
    for kinds, kind in _KINDS.items():
        for method, handler in (
            ("GET", routes.show),
            ("PUT", routes.set),
            ("DELETE", routes.clear),
        ):
            app.add_url_rule(
                f"/cluster/limits/{kinds}/<name>",
                endpoint=f"{method} limits of {kinds}",
                view_func=partial(answering(handler), kind),
                methods=[method],
            )


def _json(body: msgspec.Struct) -> Answer:
    response = Response(_ENCODER.encode(body), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response, 200


def _not_found() -> Answer:
    return error_answer("LIMITS_NOT_FOUND", "no limits are set for this name", 404)
