"""Refuses a large write that cannot be kept when only its head has come.

A body that cannot be kept need not be received: a quota may have no room for it, or the leader's
disk none for anybody's. The Content-Length says how much is certainly to be kept: of a JSON body
nearly nothing, because white space is not. Whatever else may be wrong with the write, and all that
depends on its body, waits for the body. So does all that another node decides: a follower does not
know how full its leader's disk is.
"""

from __future__ import annotations

from streamd.http.protocol import fields
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.routing import BatchRoute, StreamRoute, Target
from streamd.http.streams import batches, writes
from streamd.http.streams.service import Service
from streamd.http.streams.writes import Write
from streamd.node.foresight import SMALL_WRITE_BYTES
from streamd.protocol.headers import CONTENT_ENCODING, CONTENT_TYPE
from streamd.streams import quotas
from streamd.streams.content import JSON_SEPARATOR, Records, is_json
from streamd.streams.subscriptions.model import FenceStamp


async def refusal_of_large_write(
    service: Service, request: Request, route: Target | None
) -> Response | None:
    """The answer to a write that is refused whatever its body is; None leaves it to the handler.

    Raises `NoRoom` for a write that this node would take, had it room for its bytes. Repetitions
    and writes that are refused for another reason bring none, and get their own answers. Raises
    `ProblemError`, `Unavailable`.
    """
    group = service.node.group
    if group.admission.has_room and not group.state.limits.quotas:
        return None
    length = request.headers.get(b"content-length", b"")
    if not length.isdigit() or int(length) <= SMALL_WRITE_BYTES:
        return None
    if CONTENT_ENCODING.key in request.headers:
        return None
    fence = await service.write_stamp(request) if request.method == "POST" else None
    write = _least_write(request, route, int(length), fence)
    if write is None:
        return None
    outcome = await service.node.foresight.outcome(write.command)
    if outcome is None:
        group.admission.must_have_room()
        return None
    return write.answer(write.command, outcome) if outcome.result in quotas.REFUSALS else None


def _least_write(
    request: Request, route: Target | None, length: int, fence: FenceStamp | None
) -> Write | None:
    """The write of a body of that length, with as few records and bytes as it can have."""
    raw_type = request.headers.get(CONTENT_TYPE.key)
    if not raw_type:
        return None
    kind = fields.content_type(raw_type)
    if isinstance(route, BatchRoute):
        length -= batches.MAX_FRAMES * batches.LENGTH_BYTES
    # Memory for zeros is not touched, and so not used.
    size = 1 + len(JSON_SEPARATOR) if is_json(kind) else length
    records = Records(bytes(size), [size])
    match request.method, route:
        case "POST", StreamRoute():
            return writes.APPEND.write(request, route, kind, records, fence)
        case "POST", BatchRoute():
            return batches.BATCH.write(request, route, kind, records, fence)
        case "PUT", StreamRoute():
            return writes.write_create(request, route, kind, records)
        case _:
            return None
