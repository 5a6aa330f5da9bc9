"""Serves the console, and tells it who its user is and where the streams are."""

from __future__ import annotations

import msgspec
from quart import Response, request

from streamd import __version__
from streamd.http.admin.operator import Answer, Operator, refusal, sender
from streamd.http.console.files import INDEX, File, files, policy
from streamd.http.protocol.raw_paths import NO_SUCH_ROUTE

_ENCODER = msgspec.json.Encoder()
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  # compared with, not bound


class SessionBody(msgspec.Struct):
    """What the console knows of its user and of the node.

    `scopes` are those of the credential, one verb each; null where nobody has to say who they are.
    `streams_url` is where streams are served, null for where the console is. `audit_stream` is the
    stream with the audit trail, as ``BUCKET/NAME``, if it is in one.
    """

    name: str | None
    scopes: list[str] | None
    node_id: int
    version: str
    cluster_name: str | None
    streams_url: str | None
    audit_stream: str | None
    has_cold_store: bool


async def page(operator: Operator) -> Answer:
    """The console's page."""
    found = await operator.node.run_blocking(files)
    return _served(operator, found[INDEX])


async def file(operator: Operator, file: str) -> Answer:
    """One of the console's files."""
    found = (await operator.node.run_blocking(files)).get(file)
    return refusal(NO_SUCH_ROUTE.response()) if found is None else _served(operator, found)


async def session(operator: Operator) -> Answer:
    """Tell the console who is asking, and what it must know of the node."""
    identity, config = sender(), operator.config
    audit = config.log.audit_stream
    body = SessionBody(
        None if identity is None else identity.name,
        None if identity is None else identity.scopes.texts(),
        config.server.node_id,
        __version__,
        config.cluster.name,
        _streams_origin(operator),
        None if audit is None else audit.replace(b"\0", b"/", 1).decode(),
        config.cold.backend != "none",
    )
    response = Response(_ENCODER.encode(body), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response, 200


def _served(operator: Operator, found: File) -> Answer:
    """A file, or word that the browser has it."""
    headers = {
        "Content-Security-Policy": policy(_streams_origin(operator)),
        "Cache-Control": "no-cache",
        "ETag": f'"{found.etag}"',
    }
    if found.etag in request.headers.get("If-None-Match", ""):
        return Response(b"", headers=headers), 304
    return Response(found.content, headers=headers, content_type=found.content_type), 200


def _streams_origin(operator: Operator) -> str | None:
    """The origin of the clients' address, if operations have one of their own. A node that listens
    on all addresses and advertises none is reached under the name that the page has."""
    config = operator.config
    if config.admin.listen is None:
        return None
    scheme = "http" if config.server.tls_cert is None else "https"
    if config.server.advertise is not None:
        return f"{scheme}://{config.server.advertise}"
    host, port = config.server.listen_address
    if host in _WILDCARDS:
        host, _, _ = request.host.rpartition(":")
        return f"{scheme}://{host}:{port}"
    return f"{scheme}://{config.server.listen}"
