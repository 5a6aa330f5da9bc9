"""Every error of the HTTP interface: the one table of statuses, codes and texts.

The server answers with these, the OpenAPI document and docs/errors.md list them, and the client
finds its exceptions by their codes. Codes and statuses are promises; the texts may change.
"""

from __future__ import annotations

from enum import Enum, unique

_RETRY = "Retry-After: 1"
_STATE = ("Stream-Next-Offset", "Stream-Closed")
_BEARER = 'WWW-Authenticate: Bearer realm="streamd"'
_INVALID = f'{_BEARER}, error="invalid_token"'
_NODE = "Ask a member of the cluster; the message says what the operator can do."
_SHORTER = "Send fewer or shorter ones, or raise the limit."


class ProblemError(Exception):
    """A request is refused. `detail`, if there is any, is sent in place of the problem's message;
    `head` has header lines in wire form, besides those that the problem always has. A `reason` is
    a word for programs, where one code has several."""

    def __init__(
        self, problem: Problem, detail: str = "", head: bytes = b"", *, reason: str = ""
    ) -> None:
        super().__init__(detail or problem.message)
        self.problem = problem
        self.head = head
        self.reason = reason


@unique
class Problem(Enum):
    """An error: its status, its message, what the sender or the operator can do, and its headers.

    Each answer has the headers that are given with a value, and the others if their values are
    known. A member's name is the stable code. One that ends in its status has the code without it,
    which means something else with another status.
    """

    def __init__(self, status: int, message: str, cure: str, *headers: str) -> None:
        self.status = status
        self.code = self._name_.removesuffix(f"_{status}")
        self.message = message
        self.meaning = f"{message[0].upper()}{message[1:]}."
        self.cure = cure
        self.headers = tuple(header.partition(":")[0] for header in headers)
        self.head = "".join(f"{header}\r\n" for header in headers if ":" in header).encode()

    def error(self, detail: str = "", head: bytes = b"", *, reason: str = "") -> ProblemError:
        """The exception to raise."""
        return ProblemError(self, detail, head, reason=reason)

    # fmt: off
    # -- any request can meet these ---------------------------------------------------------------

    BAD_REQUEST = 400, "the head of the request is malformed", "Send it as RFC 9112 defines it."
    DUPLICATE_HEADER = 400, "a header that may occur once is repeated", "Send it once."
    AMBIGUOUS_LENGTH = 400, "Content-Length and Transfer-Encoding are both given", "Send one."
    INVALID_TRANSFER_ENCODING = (400, "Transfer-Encoding must be chunked",
        "Send the body in chunks, or with Content-Length.")
    INVALID_CONTENT_LENGTH = (400, "Content-Length is not a number",
        "Send the size of the body in bytes.")
    MISSING_HOST = 400, "Host is required", "Send it: HTTP/1.1 requires it."
    INVALID_HOST = 400, "Host is not a host and port", "Send the node's name or address, and port."
    INVALID_TARGET = (400, "the request target is not a path",
        "Begin it with a slash, and escape special characters.")
    INVALID_PATH = (400, "the path is ambiguous or malformed",
        "Escape UTF-8; leave out control characters, empty and `..` segments, and escaped slashes.")
    BAD_CHUNK = 400, "the chunked body is malformed", "Send chunks as RFC 9112 defines them."
    BAD_TRAILER = 400, "a trailer is malformed or not allowed", "Send the field in the head."
    AMBIGUOUS_CREDENTIALS = (400, "the request has both Authorization and a signed URL",
        "Send one of them.")
    AUTHENTICATION_REQUIRED = (401, "the request needs a token: Authorization: Bearer sd_…",
        "Send a token.", _BEARER)
    INVALID_TOKEN = (401, "the token is not valid: it is unknown, has expired, or was revoked",
        "Ask the operator for another one.", _INVALID)
    INVALID_SIGNED_URL = (401,
        "the signed URL was changed, has ended, is for another request, or is of a root token",
        "Have the URL signed again.", _INVALID)
    INSUFFICIENT_SCOPE = (403, "the token has no scope for this",
        "Use a token whose scopes permit it.", f'{_BEARER}, error="insufficient_scope"')
    ORIGIN_NOT_ALLOWED = (403,
        "pages of this origin may not use streams; server.allowed_origins may list it",
        "List the page's origin there. No page may administer a node.")
    HEADER_TIMEOUT = (408, "the request's head arrived too slowly",
        "Try again; see `server.header_timeout_ms`.")
    BODY_TIMEOUT = (408, "the request's body arrived too slowly",
        "Try again; see `server.body_min_bytes_per_s`.")
    BODY_TOO_LARGE = (413, "the body exceeds `server.max_body_bytes`",
        "Send it in parts, or raise the limit.")
    TARGET_TOO_LONG = 414, "the request target exceeds 8 KiB", "Send a shorter path or query."
    UNSUPPORTED_CODING = (415, "a body must be sent without Content-Encoding",
        "Send the bytes that readers are to get.", "Accept-Encoding: identity")
    EXPECTATION_FAILED = 417, "only Expect: 100-continue is supported", "Leave Expect out."
    HOST_NOT_ALLOWED = (421,
        "Host is not a name of this node; server.allowed_hosts may list more of them",
        "List the name there, or use another one.")
    TOO_MANY_REQUESTS = (429,
        "a limit of the sender or the bucket is used up, or it sent too many wrong signatures",
        "Try again after `Retry-After`, or have the limit raised that `RateLimit` names.",
        "Retry-After")
    TOO_MANY_HEADERS = 431, "there are more headers than `server.max_headers`", _SHORTER
    HEADERS_TOO_LARGE = 431, "the head exceeds `server.max_header_bytes`", _SHORTER
    TRAILERS_TOO_LARGE = 431, "the trailers exceed 4 KiB", "Send the fields in the head."
    INTERNAL = (500, "an internal error",
        "It is a bug in the server: report it, with the traceback in its log.")
    OVERLOADED = (503, "too many bodies are being received, or answers wait for slow clients",
        "Try again after `Retry-After`, or raise `server.max_buffered_bytes`.", _RETRY)
    TOO_MANY_CONNECTIONS = (503, "too many connections are open",
        "Try again after `Retry-After`; close connections that are not needed.", _RETRY)
    HTTP_VERSION = 505, "only HTTP/1.1 and HTTP/1.0 are supported", "Send one of these."

    # -- routes -----------------------------------------------------------------------------------

    NOT_FOUND = 404, "no such route", "Check the path."
    METHOD_NOT_ALLOWED = 405, "the path has no such method", "Use a method of `Allow`.", "Allow"
    METHOD_UNKNOWN = 501, "unknown method", "Use a method of HTTP that the path has."

    # -- the server -------------------------------------------------------------------------------

    RESPONSE_TOO_LARGE = 500, "the answer is too large", "Ask for less."
    TOO_MANY_READERS = (503, "too many live readers; try again later",
        "Try again after `Retry-After`, or raise `server.max_live_readers`.", _RETRY)
    TOO_MANY_UPLOADS = (503, "too many snapshots are being published; try again later",
        "Try again after `Retry-After`.", _RETRY)
    TOO_MANY_DOWNLOADS = (503, "too many snapshots are being read; try again later",
        "Try again after `Retry-After`.", _RETRY)
    UNAVAILABLE = (503, "no leader took the request in time; nothing was changed",
        "Try again after `Retry-After`; see whether most members of the cluster run.", _RETRY)
    OUTCOME_UNKNOWN = (503,
        "the outcome of the write was not known in time: it may have taken effect, or may yet",
        "Read before you write again; a producer can repeat it.", _RETRY)
    COLD_DATA_DAMAGED = (500,
        "bytes in the cold store are damaged or missing; the node's log names the object",
        "Restore the object, or what it held from a backup.")
    NODE_REMOVED = 503, "this node was removed from the cluster", _NODE, _RETRY
    NODE_DATA_LOST = 503, "this member's data directory is empty", _NODE, _RETRY
    NODE_NOT_ADDED = 503, "this node is not a member of a cluster yet", _NODE, _RETRY
    AUDIT_UNAVAILABLE = (503, "the audit trail cannot be written, so nothing was done",
        "Make room for the audit trail, or mend its disk.", _RETRY)
    COLD_UNAVAILABLE = (503, "old bytes are in the cold store, which cannot be read now",
        "Try again after `Retry-After`; see whether the object store answers.", "Retry-After: 5")
    UPLOAD_LOST = 503, "the upload was interrupted", "Publish the snapshot again.", _RETRY

    # -- names ------------------------------------------------------------------------------------

    INVALID_BUCKET_ID = (400, "a bucket id is 4 to 64 of a-z 0-9 _ - and not reserved",
        "Choose such an id.")
    INVALID_STREAM_ID = (400, "a stream id is not empty, reserved, or too long, and has no / or ..",
        "Choose such an id.")
    BUCKET_NOT_FOUND = 404, "bucket not found", "Create it, or check its name."
    STREAM_NOT_FOUND = 404, "stream not found", "Create it, or check its name: it may have expired."
    SNAPSHOT_NOT_FOUND = 404, "snapshot not found", "Read the latest one, which may replace it."
    STREAM_GONE = (410, "the stream was deleted; forks of it still exist",
        "Read a fork. The name is free once the forks are deleted.")

    # -- headers, parameters and bodies -----------------------------------------------------------

    INVALID_REQUEST = (400, "a header, parameter or body has an invalid value",
        "Correct what the message names.")
    INVALID_OFFSET = (400, "the offset is malformed, or is not one of the stream",
        "Use an offset from an earlier answer.")
    INVALID_CONTENT_TYPE = 400, "Content-Type is not a media type", "Send one, such as text/plain."
    MISSING_CONTENT_TYPE = 400, "Content-Type is required with a body", "Send the stream's."
    EMPTY_BODY = (400, "a body is required unless Stream-Closed is true",
        "Send at least one byte, message or frame.")
    INVALID_JSON = 400, "the body is not JSON, but the stream is", "Send JSON."
    TOO_MANY_MESSAGES = 400, "a body has at most a million messages", "Send several appends."
    INVALID_FRAME = 400, "the batch is not a sequence of frames", "Correct the frames' lengths."
    TOO_MANY_FRAMES = 400, "a batch has at most 512 frames", "Send several batches."
    INVALID_FORK = (400, "the headers of a fork do not name a stream, or one of them is missing",
        "Name a stream of this server in Stream-Forked-From.")

    # -- writes -----------------------------------------------------------------------------------

    INVALID_PRODUCER = (400, "Producer-Id, Producer-Epoch and Producer-Seq go together",
        "Send all three, or none.")
    INVALID_EPOCH_SEQ = (400, "a new Producer-Epoch starts with Producer-Seq 0",
        "Begin the epoch with 0.", *_STATE)
    STALE_EPOCH = (403, "Producer-Epoch is older than the producer's current epoch",
        "Stop: another instance of the producer has taken over.", "Producer-Epoch", *_STATE)
    SEQUENCE_GAP = (409, "Producer-Seq skips ahead", "Send what is missing first.",
        "Producer-Expected-Seq", "Producer-Received-Seq", *_STATE)
    SEQUENCE_CONFLICT = (409, "Stream-Seq is not greater than the last one appended",
        "Another writer, or this one before, has appended: read, then decide.", *_STATE)
    CONTENT_TYPE_MISMATCH = (409, "Content-Type differs from the stream's",
        "Send the stream's content type.", *_STATE)
    UNAUTHENTICATED = (401, "the request needs a valid write token",
        "Send the write token of the current claim.", _INVALID)
    FORBIDDEN = (403, "the token is not for writing to this stream",
        "Use the write token of a subscription to it.")
    WRITE_FENCE_UNAVAILABLE = (501,
        "fenced streams need features that are not enabled in this cluster yet",
        "Run this release on every member, and enable its features.")
    STREAM_CLOSED = 409, "the stream is closed", "Append to another stream.", *_STATE
    STREAM_EXISTS = (409, "the stream exists with another configuration",
        "Use the stream that exists, or choose another name.")
    STREAM_GONE_409 = (409, "the stream, or the source of the fork, was deleted; forks keep it",
        "Choose another name, or another source.")
    PRECONDITION_FAILED = (412,
        "the stream is not in a state that If-Match names, or is in one that If-None-Match names",
        "Read the stream, and decide again.", "ETag", *_STATE)

    # -- proofs -----------------------------------------------------------------------------------

    NO_RECORD = (404, "no record begins at this offset yet: it is the stream's tail",
        "Append, or name the offset at which the record begins.")
    NOT_PROVABLE = (409, "the archived log does not show which command appended the record",
        "The message says why; proofs.md lists the cases.")
    NOT_ARCHIVED = (503, "the record is not in the archived log yet",
        "Try again after `Retry-After`: the log is archived every few seconds.", _RETRY)
    PROOF_IN_PROGRESS = (503, "this node is making another proof",
        "Try again after `Retry-After`, or ask another node.", _RETRY)
    PROOF_TIMEOUT = (503, "the log is too long to find the record in time",
        "Try again when the node and the object store have less to do.", "Retry-After: 60")

    # -- buckets and snapshots --------------------------------------------------------------------

    BUCKET_EXISTS = 409, "the bucket exists", "Use it, or choose another name."
    BUCKET_NOT_EMPTY = (409, "the bucket has streams, or deleted streams that forks read",
        "Delete its streams and their forks first.")
    OFFSET_BEYOND_TAIL = (409, "the offset is past the stream's tail",
        "Use an offset up to the tail.", "Stream-Next-Offset")
    SNAPSHOT_EXISTS = (409, "another snapshot was published at this offset",
        "Read that one, or publish at a later offset.")
    SNAPSHOT_IN_USE = (409, "the latest snapshot replaces trimmed records and cannot be deleted",
        "Publish a later one, which replaces it.")
    STREAM_OFFSET_GONE = (410,
        "the records before Stream-Earliest-Offset were trimmed; start from the stream's bootstrap",
        "Read the bootstrap.", "Stream-Earliest-Offset")
    SNAPSHOT_TOO_LARGE = (413, "the snapshot exceeds `server.max_snapshot_bytes`",
        "Publish a smaller one, or raise the limit.")
    TOO_MANY_STREAMS = (403, "the bucket has as many streams as its limits allow",
        "Delete streams, or have the limit raised.")
    QUOTA_EXCEEDED = (507, "the bucket or the stream would keep more bytes than its limits allow",
        "Delete streams, publish snapshots, or have the limit raised.")
    DISK_LOW = (507,
        "the disk of the node that leads has less free space than `storage.min_free_bytes`",
        "Delete streams, or make room on the disk.")
    TOO_MANY_PRODUCERS = (507,
        "the stream remembers 10,000 producers, and none has been idle for an hour",
        "Append with a Producer-Id that the stream knows.")

    # -- subscriptions ----------------------------------------------------------------------------

    WEBHOOK_URL_REJECTED = (400, "webhooks may not be sent to this URL",
        "Use https and a public address; the message says what is wrong.")
    TOKEN_INVALID = (401, "the token is not one of a wake or claim of this subscription",
        "Send the token of the webhook or of the claim: `Authorization: Bearer dsc_…`.", _INVALID)
    TOKEN_EXPIRED = (401, "the token of the wake or claim has expired",
        "Stop: the lease has ended. Claim again, or wait for the next webhook.", _INVALID)
    SUBSCRIPTION_NOT_FOUND = (404,
        "no subscription has this id, or the token's scopes do not cover it",
        "Check the id, and the scopes `subscribe:` of the token.")
    SUBSCRIPTION_ALREADY_EXISTS = (409, "the subscription exists with another configuration",
        "Delete it first, or choose another id.")
    TOO_MANY_SUBSCRIPTIONS = (409,
        "at most 100,000 subscriptions may exist, of each identity as many as its limits allow",
        "Delete some, or have the limit raised.")
    FENCED = (409, "another generation of the subscription has taken over, or its lease has ended",
        "Stop: what is left belongs to another worker.",
        "Producer-Epoch", "Producer-Expected-Seq", "Producer-Received-Seq")
    ALREADY_CLAIMED = (409, "another worker holds the lease",
        "Wait for the next wake, or until the lease ends.")
    NO_PENDING_WORK = (409, "nothing is pending", "Wait for the next wake.")
    INVALID_OFFSET_409 = (409,
        "an acknowledged stream is not one of the subscription's, or its offset is out of range",
        "Acknowledge offsets from the last one on, up to the tail that the wake named or later.")
    SUBSCRIPTION_KEYS_SEALED = (503,
        "this node cannot open the keys of subscriptions; the message names the file that it lacks",
        "Give the node `subscriptions.secret_file` of the other nodes.", _RETRY)

    # -- administration ---------------------------------------------------------------------------

    UNSUPPORTED_MEDIA_TYPE = (415, "Content-Type must be application/json",
        "Send that; web pages need permission for it.")
    PROFILE_IN_PROGRESS = 409, "another profile is being taken", "Wait for its end."
    NO_COLD_STORE = (404, 'this node has no cold store: cold.backend is "none"',
        "Configure one, or use `streamd backup save`.")
    NO_LOG_HEAD = (409,
        "the archived log has no tree yet, or the cluster does not know this node's key yet",
        "Try again after the next segment of the log; all members must run this release.")
    TOO_MANY_LOG_KEYS = (409, "a cluster has at most 256 keys for heads of the log",
        "Keep the present key.")
    TOO_MANY_SUBSCRIPTION_KEYS = (409,
        "8 keys of subscriptions are published: those that were replaced within the last 24 hours",
        "Rotate again tomorrow, or with `--revoke`, which ends all earlier keys at once.")
    TOKEN_NOT_FOUND = 404, "no token has this id or name", "List the tokens."
    TOKEN_EXISTS = 409, "a token has this name", "Choose another name, or rotate that token."
    CANNOT_SIGN = (409,
        "the token is a root token, of an identity provider, or of an earlier release",
        "Use a token that the server has made, or rotate it.")
    TOO_MANY_TOKENS = 409, "at most 10,000 tokens may exist", "Revoke tokens."
    LIMITS_NOT_FOUND = 404, "no limits are set for this name", "List the limits."
    TOO_MANY_LIMITS = 409, "at most 10,000 buckets and identities may have limits", "Clear limits."
    BACKUP_NOT_FOUND = 404, "the backup has ended, or has no such object", "Begin another backup."
    BACKUP_IN_PROGRESS = (409,
        "another backup of this node is under way, or was broken off within a minute",
        "Wait for its end, or save from another node.")
    HAS_COLD_STORE = (409,
        "this node has a cold store, which holds its backup: see `streamd backup status`",
        "Back up the cold store's bucket.")

    # -- the cluster ------------------------------------------------------------------------------

    NOT_A_MEMBER = 404, "no member has this id", "See `streamd cluster status`."
    NOT_A_LEARNER = 404, "no learner has this id", "See `streamd cluster status`."
    NOT_A_VOTER = (404, "no voter has this id, or there is no other voter",
        "See `streamd cluster status`.")
    NOT_A_CLUSTER = (409, "this node is a cluster by itself: cluster.name is not set",
        "Set `cluster.name`, and found a cluster.")
    MEMBER_ALREADY = 409, "the node is a member already", "Nothing is to be done."
    NOT_EMPTY = 409, "the node has data already", "Start it with an empty data directory."
    NOT_JOINED = 409, "the node did not accept the invitation", "See that node's log."
    RELEASE_TOO_OLD = (409, "the node's release does not understand the cluster's log",
        "Install the release of the other members.")
    NOT_CAUGHT_UP = 409, "the learner lags too far to become a voter", "Wait, and try again."
    LAST_VOTER = 409, "the last voter cannot be removed", "Promote another member first."
    QUORUM_AT_RISK = (409, "too few of the voters that remain answer and may vote",
        "Wait until the nodes that the message names are well, or replace one of them first.")
    CHANGE_IN_PROGRESS = 409, "another change of members is under way", "Wait, and try again."
    INVALID_CONFIGURATION = (409, "the change would lead to an invalid configuration",
        "Correct what the message names.")
    NOT_TRANSFERRED = 409, "the node did not become the leader", "See whether it keeps up."
    OPERATION_NOT_FOUND = 404, "no operation has this id", "List the operations."
    OPERATION_IN_PROGRESS = (409, "another operation on the cluster is in progress",
        "Wait for its end, or cancel it.")
    OPERATION_ENDED = 409, "the operation has ended", "Begin another one."
    OPERATION_REFUSED = (409, "the operation cannot be begun, or not changed in this way",
        "Correct what the message names.")
    NOT_WAITING = (409, "the operation does not wait for the operator",
        "See what it waits for: `streamd operations show`.")
    FEATURES_NOT_RAISED = (409, "a member does not understand what the features need",
        "Run this release on every member, and try again.")
    NO_ANSWER = (502, "no node of this cluster answers at that address",
        "Start the node; check the address, the name of the cluster and the certificates.")
    # fmt: on
