"""Every error: its status, its stable code, its meaning, and the headers that say more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Error(NamedTuple):
    """The meaning of an error. The answer has `headers` if their values are known."""

    meaning: str
    headers: tuple[str, ...] = ()


_STATE = ("Stream-Next-Offset", "Stream-Closed")
_RETRY = ("Retry-After",)
_CHALLENGE = ("WWW-Authenticate",)

# Errors that any request can meet.
EVERYWHERE: dict[str, Error] = {
    "400 BAD_REQUEST": Error("The head is malformed."),
    "400 DUPLICATE_HEADER": Error("A header is repeated that may occur once."),
    "400 AMBIGUOUS_LENGTH": Error("Content-Length and Transfer-Encoding are both given."),
    "400 INVALID_TRANSFER_ENCODING": Error("Transfer-Encoding is not `chunked`."),
    "400 INVALID_CONTENT_LENGTH": Error("Content-Length is not a number."),
    "400 MISSING_HOST": Error("Host is missing."),
    "400 INVALID_HOST": Error("Host is not a host and port."),
    "400 INVALID_TARGET": Error("The request target is not a path."),
    "400 INVALID_PATH": Error("The path could mean two things, or nothing."),
    "400 BAD_CHUNK": Error("The chunked body is malformed."),
    "400 BAD_TRAILER": Error("A trailer is malformed or not allowed."),
    "400 AMBIGUOUS_CREDENTIALS": Error("Authorization is given, and the URL is signed."),
    "401 AUTHENTICATION_REQUIRED": Error("The request needs a token.", _CHALLENGE),
    "401 INVALID_TOKEN": Error("The token is unknown, has expired, or was revoked.", _CHALLENGE),
    "403 ORIGIN_NOT_ALLOWED": Error("Pages of this origin may not do this."),
    "401 INVALID_SIGNED_URL": Error(
        "The signed URL was changed, is for another request, or has ended.", _CHALLENGE
    ),
    "403 INSUFFICIENT_SCOPE": Error("The token's scopes do not permit this.", _CHALLENGE),
    "421 HOST_NOT_ALLOWED": Error("Host is not a name of this node; see `server.allowed_hosts`."),
    "408 HEADER_TIMEOUT": Error("The head arrived too slowly."),
    "408 BODY_TIMEOUT": Error("The body arrived too slowly."),
    "413 BODY_TOO_LARGE": Error("The body exceeds `server.max_body_bytes`."),
    "414 TARGET_TOO_LONG": Error("The request target exceeds 8 KiB."),
    "415 UNSUPPORTED_CODING": Error(
        "A body may have no Content-Encoding but `identity`.", ("Accept-Encoding",)
    ),
    "417 EXPECTATION_FAILED": Error("Expect is not `100-continue`."),
    "429 TOO_MANY_REQUESTS": Error(
        "A limit of the sender or the bucket, which the RateLimit fields name, is used up; or too "
        "many wrong signatures came from this address. Nothing was changed.",
        _RETRY,
    ),
    "431 TOO_MANY_HEADERS": Error("More headers than `server.max_headers`."),
    "431 HEADERS_TOO_LARGE": Error("The head exceeds `server.max_header_bytes`."),
    "431 TRAILERS_TOO_LARGE": Error("The trailers exceed 4 KiB."),
    "505 HTTP_VERSION": Error("The version is neither HTTP/1.1 nor HTTP/1.0."),
    "500 INTERNAL": Error("A bug in the server; its log has the traceback."),
    "503 OVERLOADED": Error(
        "Too many bodies are being received, or answers wait for slow clients.", _RETRY
    ),
    "503 TOO_MANY_CONNECTIONS": Error("Too many connections are open.", _RETRY),
}
ERRORS: dict[str, Error] = {
    **EVERYWHERE,
    # -- routes -------------------------------------------------------------------------------
    "404 NOT_FOUND": Error("There is no such route."),
    "405 METHOD_NOT_ALLOWED": Error("The path has no such method.", ("Allow",)),
    "501 METHOD_UNKNOWN": Error("No path has such a method."),
    # -- the server ---------------------------------------------------------------------------
    "500 RESPONSE_TOO_LARGE": Error("The answer became too large."),
    "503 TOO_MANY_READERS": Error("Too many live readers are connected.", _RETRY),
    "503 TOO_MANY_UPLOADS": Error("Too many snapshots are being published.", _RETRY),
    "503 TOO_MANY_DOWNLOADS": Error("Too many snapshots and bootstraps are being read.", _RETRY),
    "503 UNAVAILABLE": Error("No leader took the request in time; nothing was changed.", _RETRY),
    "503 OUTCOME_UNKNOWN": Error(
        "The write may have taken effect or may yet: its fate was not known in time.", _RETRY
    ),
    "500 COLD_DATA_DAMAGED": Error(
        "Bytes in the cold store are damaged or missing; the server's log says which."
    ),
    "503 NODE_REMOVED": Error("This node was removed from the cluster; ask a member.", _RETRY),
    "503 NODE_DATA_LOST": Error("This member's data directory is empty; ask another.", _RETRY),
    "503 NODE_NOT_ADDED": Error("This node is not a member of a cluster yet.", _RETRY),
    "503 AUDIT_UNAVAILABLE": Error(
        "The audit trail cannot be written, and nothing is administered meanwhile.", _RETRY
    ),
    "503 COLD_UNAVAILABLE": Error(
        "The bytes are in the cold store, which cannot be read now.", _RETRY
    ),
    "503 UPLOAD_LOST": Error("The upload was interrupted; publish again.", _RETRY),
    # -- names --------------------------------------------------------------------------------
    "400 INVALID_BUCKET_ID": Error("A bucket id is 4 to 64 of `a-z 0-9 _ -`, and not reserved."),
    "400 INVALID_STREAM_ID": Error("The stream id is empty, reserved, too long, or has / or `..`."),
    "404 BUCKET_NOT_FOUND": Error("There is no such bucket."),
    "404 STREAM_NOT_FOUND": Error("There is no such stream."),
    "409 PROFILE_IN_PROGRESS": Error("Another profile is being taken."),
    "404 NO_COLD_STORE": Error('The node has no cold store: `cold.backend` is "none".'),
    "404 SNAPSHOT_NOT_FOUND": Error("There is no such snapshot, or a later one has replaced it."),
    "410 STREAM_GONE": Error("The stream was deleted; forks of it still exist."),
    # -- headers, parameters and bodies -------------------------------------------------------
    "400 INVALID_REQUEST": Error("A header, parameter or body has an invalid value."),
    "400 INVALID_OFFSET": Error("An offset is malformed, or contradicts the stream."),
    "400 INVALID_CONTENT_TYPE": Error("Content-Type is not a media type."),
    "400 MISSING_CONTENT_TYPE": Error("Content-Type is required with a body."),
    "400 EMPTY_BODY": Error("The body is empty, and the stream is not being closed."),
    "400 INVALID_JSON": Error("The stream is JSON, but the body is not."),
    "400 TOO_MANY_MESSAGES": Error("A body has at most a million messages."),
    "400 INVALID_FRAME": Error("The batch is not a sequence of frames."),
    "400 TOO_MANY_FRAMES": Error("A batch has at most 512 frames."),
    "400 INVALID_FORK": Error(
        "The headers of a fork do not name a stream, or one of them is missing."
    ),
    # -- writes -------------------------------------------------------------------------------
    "400 INVALID_PRODUCER": Error("The three producer headers go together."),
    "400 INVALID_EPOCH_SEQ": Error("A new Producer-Epoch starts with Producer-Seq 0.", _STATE),
    "403 STALE_EPOCH": Error(
        "Another instance of the producer has a later epoch.", ("Producer-Epoch", *_STATE)
    ),
    "409 SEQUENCE_GAP": Error(
        "Producer-Seq skips ahead.",
        ("Producer-Expected-Seq", "Producer-Received-Seq", *_STATE),
    ),
    "409 SEQUENCE_CONFLICT": Error("Stream-Seq is not greater than the last.", _STATE),
    "409 CONTENT_TYPE_MISMATCH": Error("Content-Type differs from the stream's.", _STATE),
    "409 STREAM_CLOSED": Error("The stream is closed.", _STATE),
    "409 STREAM_EXISTS": Error("The stream exists with another configuration."),
    "409 STREAM_GONE": Error("The stream, or the source of the fork, was deleted."),
    "412 PRECONDITION_FAILED": Error(
        "The stream is not in a state that If-Match names, or is in one that If-None-Match names.",
        ("ETag", *_STATE),
    ),
    # -- buckets and snapshots ----------------------------------------------------------------
    "409 BUCKET_EXISTS": Error("The bucket exists."),
    "409 BUCKET_NOT_EMPTY": Error("The bucket has streams, or deleted streams that forks read."),
    "409 OFFSET_BEYOND_TAIL": Error(
        "The offset is past the stream's tail.", ("Stream-Next-Offset",)
    ),
    "409 SNAPSHOT_EXISTS": Error("Another snapshot was published at this offset."),
    "409 SNAPSHOT_IN_USE": Error("The latest snapshot replaces trimmed records."),
    "410 STREAM_OFFSET_GONE": Error(
        "The records before that offset were trimmed: start from the bootstrap.",
        ("Stream-Earliest-Offset",),
    ),
    "413 SNAPSHOT_TOO_LARGE": Error("The snapshot exceeds `server.max_snapshot_bytes`."),
    # -- administration ---------------------------------------------------------------------
    "415 UNSUPPORTED_MEDIA_TYPE": Error("Content-Type is not application/json."),
    "404 TOKEN_NOT_FOUND": Error("No token has this id or name."),
    "409 TOKEN_EXISTS": Error("A token has this name."),
    "409 CANNOT_SIGN": Error("It is a root token, or not one of streamd's own, or too old."),
    "409 TOO_MANY_TOKENS": Error("There are 10,000 tokens."),
    "507 QUOTA_EXCEEDED": Error(
        "The bucket or the stream would keep more bytes than the bucket's limits allow."
    ),
    "507 DISK_LOW": Error(
        "The disk of the node that leads has less free space than `storage.min_free_bytes`."
    ),
    "507 TOO_MANY_PRODUCERS": Error(
        "The stream remembers 10,000 producers, none of which has been idle for an hour."
    ),
    "403 TOO_MANY_STREAMS": Error("The bucket has as many streams as its limits allow."),
    "404 LIMITS_NOT_FOUND": Error("No limits are set for this name."),
    "409 TOO_MANY_LIMITS": Error("10,000 buckets and identities have limits."),
    # -- the cluster --------------------------------------------------------------------------
    "404 BACKUP_NOT_FOUND": Error("The backup has ended, or has no such object."),
    "409 BACKUP_IN_PROGRESS": Error("Another backup of this node is under way."),
    "409 HAS_COLD_STORE": Error("This node has a cold store, which holds its backup."),
    "404 NOT_A_MEMBER": Error("No member has this id."),
    "404 NOT_A_LEARNER": Error("No learner has this id."),
    "404 NOT_A_VOTER": Error("No voter has this id, or there is no other voter."),
    "409 NOT_A_CLUSTER": Error("This node has no `cluster.name`."),
    "409 MEMBER_ALREADY": Error("The node is a member already."),
    "409 NOT_EMPTY": Error("The node has data already."),
    "409 NOT_JOINED": Error("The node did not accept the invitation."),
    "409 RELEASE_TOO_OLD": Error("The node's release does not understand the cluster's log."),
    "409 NOT_CAUGHT_UP": Error("The learner lags too far to become a voter."),
    "409 LAST_VOTER": Error("The last voter cannot be removed."),
    "409 CHANGE_IN_PROGRESS": Error("Another change of members is under way."),
    "409 INVALID_CONFIGURATION": Error("The change would lead to an invalid configuration."),
    "409 NOT_TRANSFERRED": Error("The node did not become the leader."),
    "502 NO_ANSWER": Error("No node of this cluster answers at that address."),
}

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
