"""Signed heads of the tree over the log, and the key with which this node signs them."""

from __future__ import annotations

import msgspec
from quart import Response, request

from streamd.audit_trail.trail import note
from streamd.backup.log_heads import LogHeads
from streamd.backup.log_keys import TooManyKeys
from streamd.http.admin.operator import Answer, Operator
from streamd.http.protocol.fields import parse_query, whole_number
from streamd.proofs.published import PublishedHead, PublishedKey
from streamd.protocol.problems import Problem
from streamd.streams.bounds import MAX_SAFE_INTEGER

_ENCODER = msgspec.json.Encoder()


async def newest(operator: Operator) -> Answer:
    """The newest head, signed by this node, with the proof that it continues an earlier one if that
    is asked for."""
    heads, given = _heads(operator), parse_query(request.query_string)
    since = given.get(b"since")
    if since is None:
        head = heads.newest()
    else:
        size = whole_number(since, "since", MAX_SAFE_INTEGER)
        try:
            head = await heads.since(size)
        except ValueError as error:
            raise Problem.INVALID_REQUEST.error(f"since: {error}") from error
    if head is None:
        raise Problem.NO_LOG_HEAD.error()
    return _json(head)


async def rotate_key(operator: Operator) -> Answer:
    """Replace this node's key by a new one."""
    heads = _heads(operator)
    try:
        key = heads.published(await heads.keys.rotate())
    except TooManyKeys:
        raise Problem.TOO_MANY_LOG_KEYS.error() from None
    note(key=key.key, signed_by=key.signed_by)
    return _json(key)


def _heads(operator: Operator) -> LogHeads:
    archive = operator.node.archive
    if archive is None:
        raise Problem.NO_COLD_STORE.error()
    return archive.heads


def _json(body: PublishedHead | PublishedKey) -> Answer:
    response = Response(_ENCODER.encode(body), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response, 200
