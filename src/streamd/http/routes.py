"""The table of routes: every method of every path, what answers it, what it needs and what it does.

Everything else about routes follows from it (`router`): which path has which, the scopes that are
asked for, Allow and preflight answers, labels of metrics, the rules of the operations app, and the
OpenAPI document. Every path answers OPTIONS, so that is not in the table: it tells nothing of the
state and needs nothing, because browsers ask without credentials.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from streamd.cluster.administration import Add, AdminCommand, Promote, Remove, Transfer
from streamd.http.access import needs
from streamd.http.access.needs import OPEN, NeedsOf
from streamd.http.admin import (
    backups,
    cluster,
    console,
    debugging,
    limits,
    log_heads,
    nodes,
    operations,
    signing,
    streams,
    subscription_keys,
    tokens,
)
from streamd.http.openapi import (
    bucket_docs,
    console_docs,
    limit_docs,
    node_docs,
    operation_docs,
    snapshot_docs,
    stream_docs,
    subscription_docs,
    token_docs,
)
from streamd.http.openapi.elements import Operation
from streamd.http.openapi.stream_docs import IN_BUCKET
from streamd.http.protocol.messages import Parked, Request, Response
from streamd.http.streams import batches, bootstrap, buckets, reading, snapshots, writes
from streamd.http.streams.service import Service
from streamd.http.streams.writes import Write
from streamd.http.subscriptions import administering, verifying, working
from streamd.streams.limits import Kind

# Answers a read without waiting, or with None leaves it to the handler.
Prompt = Callable[[Service, Request, Any], Response | Parked | None]
# Says what to propose for a write, or with None leaves it to the handler. It needs no state, so
# that another process than the one with the state can call it (`workers`).
Judge = Callable[[Request, Any], Write | None]


class Handler(NamedTuple):
    """What answers a route.

    For streams and buckets `handle` takes a `Service`, a `Request` and the target of the path, and
    returns a `Response`, `LiveResponse` or `Parked`; `prompt` or `judge`, if there is one, is asked
    first. For operations it takes an `Operator` and the path's parameters, and returns an `Answer`.
    """

    handle: Callable[..., Awaitable[Any]]
    prompt: Prompt | None = None
    judge: Judge | None = None


class Path(NamedTuple):
    """Where routes are: a template, the label in the metrics, and for the OpenAPI document a tag,
    errors of all methods, and a suffix of the names of operations that another path has, too.

    Pages of other origins may not use a path that `is_guarded`, and the audit trail has what
    changes one that `is_recorded`: both are so for operations."""

    template: str
    label: str = "ops"
    tag: str = "node"
    errors: tuple[str, ...] = ()
    id_suffix: str = ""
    is_guarded: bool = False
    is_recorded: bool = False


class Route(NamedTuple):
    """A method of a path. It `needs` scopes, or is `OPEN` to anyone."""

    method: str
    path: Path
    handler: Handler
    needs: NeedsOf | None
    doc: Operation


def _get(path: Path, handler: Handler, needed: NeedsOf | None, doc: Operation) -> tuple[Route, ...]:
    """GET, and HEAD with the same handler."""
    return (
        Route("GET", path, handler, needed, doc),
        Route("HEAD", path, handler, needed, doc.head()),
    )


def _streams(path: Path) -> tuple[Route, ...]:
    """A stream, at one of its two addresses."""
    docs = stream_docs
    get = Handler(reading.read, prompt=reading.begin_read)
    head = Handler(reading.head, prompt=reading.begin_head)
    append = Handler(writes.APPEND.append, judge=writes.APPEND.begin)
    create = Handler(writes.create, judge=writes.begin_create)
    return (
        Route("GET", path, get, needs.read, docs.READ),
        Route("HEAD", path, head, needs.read, docs.HEAD),
        Route("POST", path, append, needs.append, docs.APPEND),
        Route("PUT", path, create, needs.create, docs.CREATE),
        Route("DELETE", path, Handler(writes.delete), needs.delete, docs.DELETE),
    )


def _below(rest: str, label: str, tag: str) -> Path:
    """A path below a stream's."""
    return Path(f"/{{bucket}}/{{stream}}/{rest}", label, tag, IN_BUCKET)


_BATCH = _below("append-batch", "batch", "streams")
_BUCKETS = Path("/", "buckets", "buckets")
_BUCKET = Path("/{bucket}", "bucket", "buckets", ("400 INVALID_BUCKET_ID",), is_recorded=True)
_LISTING = Path("/{bucket}/streams", "listing", "buckets", IN_BUCKET)
_LATEST_SNAPSHOT = _below("snapshot", "snapshot", "snapshots")
_SNAPSHOT = _below("snapshot/{snapshot}", "snapshot", "snapshots")
_BOOTSTRAP = _below("bootstrap", "bootstrap", "snapshots")

_append_batch = Handler(batches.BATCH.append, judge=batches.BATCH.begin)
_list_buckets = Handler(buckets.list_buckets)
_look_at_bucket = Handler(buckets.look_at)
_list_streams = Handler(buckets.list_streams)
_create_bucket, _delete_bucket = Handler(buckets.create), Handler(buckets.delete)
_find_snapshot, _read_snapshot = Handler(snapshots.latest), Handler(snapshots.read)
_publish, _delete_snapshot = Handler(snapshots.publish), Handler(snapshots.delete)

# Routes of clients: streams and buckets.
STREAMS: tuple[Route, ...] = (
    *_streams(Path("/v1/stream/{path}", "stream", "streams", ("404 NOT_FOUND",), "AtPath")),
    *_streams(Path("/{bucket}/{stream}", "stream", "streams", IN_BUCKET)),
    Route("POST", _BATCH, _append_batch, needs.append_batch, stream_docs.BATCH),
    *_get(_BUCKETS, _list_buckets, needs.known, bucket_docs.LIST_BUCKETS),
    *_get(_BUCKET, _look_at_bucket, needs.look_at_bucket, bucket_docs.LOOK),
    Route("PUT", _BUCKET, _create_bucket, needs.administer_bucket, bucket_docs.CREATE),
    Route("DELETE", _BUCKET, _delete_bucket, needs.administer_bucket, bucket_docs.DELETE),
    *_get(_LISTING, _list_streams, needs.list_bucket, bucket_docs.LIST),
    *_get(_LATEST_SNAPSHOT, _find_snapshot, needs.read_below, snapshot_docs.LATEST),
    *_get(_SNAPSHOT, _read_snapshot, needs.read_below, snapshot_docs.READ),
    Route("PUT", _SNAPSHOT, _publish, needs.snapshot, snapshot_docs.PUBLISH),
    Route("DELETE", _SNAPSHOT, _delete_snapshot, needs.snapshot, snapshot_docs.DELETE),
    *_get(_BOOTSTRAP, Handler(bootstrap.bootstrap), needs.read_below, snapshot_docs.BOOTSTRAP),
)


def _reserved(rest: str, *, is_guarded: bool = True, is_recorded: bool = True) -> Path:
    """A path of subscriptions. Those that need the token of a wake need no guard: no page has it.
    What workers do all the time is not recorded."""
    errors = subscription_docs.BELOW if "{" in rest else ()
    return Path(
        f"/v1/stream/__ds/{rest}",
        "subscription",
        "subscriptions",
        errors,
        is_guarded=is_guarded,
        is_recorded=is_recorded,
    )


def _on_subscriptions() -> tuple[Route, ...]:
    """The handlers of administration compare the sender's scopes with the subscription's streams;
    those that need no scope verify the token of a wake."""
    docs, known = subscription_docs, needs.known
    one = "subscriptions/{subscription}"
    named, subscription = _reserved(f"{one}/streams"), _reserved(one)
    link, test = _reserved(f"{one}/streams/{{path}}"), _reserved(f"{one}/test")
    claim = _reserved(f"{one}/claim", is_recorded=False)
    ack, release, callback, verify, key_set = (
        _reserved(rest, is_guarded=False, is_recorded=False)
        for rest in (
            f"{one}/ack",
            f"{one}/release",
            f"{one}/callback",
            f"{one}/claim/verify",
            "jwks.json",
        )
    )
    acknowledge = Handler(working.acknowledge)
    return (
        *_get(_reserved("subscriptions"), Handler(administering.list_all), known, docs.LIST),
        *_get(subscription, Handler(administering.show), known, docs.SHOW),
        Route("PUT", subscription, Handler(administering.put), known, docs.PUT),
        Route("DELETE", subscription, Handler(administering.delete), known, docs.DELETE),
        Route("POST", named, Handler(administering.link), known, docs.LINK),
        Route("DELETE", link, Handler(administering.unlink), known, docs.UNLINK),
        Route("POST", test, Handler(administering.force_wake), known, docs.FORCE_WAKE),
        Route("POST", claim, Handler(working.claim), known, docs.CLAIM),
        Route("POST", ack, acknowledge, OPEN, docs.ACK),
        Route("POST", callback, acknowledge, OPEN, docs.CALLBACK),
        Route("POST", release, Handler(working.release), OPEN, docs.RELEASE),
        Route("POST", verify, Handler(verifying.verify), OPEN, docs.VERIFY),
        *_get(key_set, Handler(administering.key_set), OPEN, docs.KEY_SET),
    )


STREAMS += _on_subscriptions()

Act = Callable[..., Awaitable[Any]]


def _probe(template: str, act: Act, doc: Operation) -> tuple[Route, ...]:
    """What load balancers, orchestrators and anyone else may ask."""
    return _get(Path(template), Handler(act), OPEN, doc)


def _report(template: str, act: Act, doc: Operation) -> tuple[Route, ...]:
    """A GET with the scope ``operate`` for its path."""
    return _get(Path(template), Handler(act), needs.operate(template[1:]), doc)


def _order(template: str, act: Act, doc: Operation) -> Route:
    """A POST with the scope ``operate`` for its path."""
    return Route("POST", Path(template), Handler(act), needs.operate(template[1:]), doc)


def _limits(kinds: str, kind: Kind) -> tuple[Route, ...]:
    """The limits of a bucket or an identity."""
    path = Path(f"/cluster/limits/{kinds}/{{name}}")
    needed, docs = needs.operate(f"cluster/limits/{kinds}"), limit_docs.of_kind(kinds, kind)
    return (
        *_get(path, Handler(partial(limits.show, kind=kind)), needed, docs.show),
        Route("PUT", path, Handler(partial(limits.set_all, kind=kind)), needed, docs.set),
        Route("DELETE", path, Handler(partial(limits.clear, kind=kind)), needed, docs.clear),
    )


def _cold(work: str, doc: Operation) -> Route:
    return _order(f"/cluster/cold/{work}", partial(cluster.start_cold_work, work=work), doc)


def _members(kind: type[AdminCommand], doc: Operation) -> Route:
    tag = kind.__struct_config__.tag
    return _order(f"/cluster/{tag}", partial(cluster.administer, kind=kind), doc)


def _alias(route: Route, template: str) -> Route:
    """A route under another name, with the scope of its first one."""
    suffix = "".join(word.title() for word in template.rpartition("/")[2].split("-"))
    path = Path(template, id_suffix=f"As{suffix}")
    return route._replace(path=path, doc=node_docs.alias(route.doc, route.path.template))


def _admin(method: str, template: str, act: Act, doc: Operation) -> Route:
    return Route(method, Path(template), Handler(act), needs.admin, doc)


def _on_operations() -> tuple[Route, ...]:
    """Operations in several steps: one scope for all, because their path has their number."""
    docs, needed = operation_docs, needs.operate("cluster/operations")
    all_of_them, one = Path("/cluster/operations"), Path("/cluster/operations/{operation}")
    return (
        *_get(all_of_them, Handler(operations.list_all), needed, docs.LIST),
        Route("POST", all_of_them, Handler(operations.begin), needed, docs.BEGIN),
        *_get(one, Handler(operations.show), needed, docs.SHOW),
        *(
            Route(
                "POST",
                Path(f"{one.template}/{kind}"),
                Handler(partial(operations.act, kind=kind)),
                needed,
                docs.ACTS[kind],
            )
            for kind in operations.ACTS
        ),
    )


_COLD = _report("/cluster/cold", cluster.report_cold, node_docs.COLD)
_COMPACT = _order("/cluster/snapshot", cluster.compact, node_docs.COMPACT)
_TRANSFER = _members(Transfer, node_docs.TRANSFER)

# Routes of operators. A backup has all streams and the hashes of all tokens. Of a token that signs
# a URL the handler compares the scopes with what it is to sign.
OPERATIONS: tuple[Route, ...] = (
    *_probe("/healthz", cluster.healthz, node_docs.HEALTH),
    *_probe("/readyz/local", cluster.readyz_local, node_docs.READY_LOCAL),
    *_probe("/readyz/cluster", cluster.readyz_cluster, node_docs.READY_CLUSTER),
    *_report("/metrics", cluster.metrics, node_docs.METRICS),
    *_probe("/openapi.json", cluster.openapi, node_docs.OPENAPI),
    *_report("/cluster/status", cluster.report_status, node_docs.STATUS),
    *_report("/cluster/stream", streams.show, node_docs.STREAM),
    *_report("/cluster/history", cluster.report_history, node_docs.HISTORY),
    *_on_operations(),
    *_report("/cluster/features", operations.features, operation_docs.FEATURES),
    _order("/cluster/features", operations.raise_features, operation_docs.RAISE),
    *_COLD,
    *_get(
        Path("/cluster/nodes/{node}"),
        Handler(nodes.report_facts),
        needs.operate("cluster/nodes"),
        node_docs.FACTS,
    ),
    *_report("/cluster/debug/tasks", debugging.tasks, node_docs.TASKS),
    *_report("/cluster/debug/memory", debugging.memory, node_docs.MEMORY),
    *_report("/cluster/debug/profile", debugging.profile, node_docs.PROFILE),
    *_get(
        Path("/cluster/debug/nodes/{node}/{report}"),
        Handler(nodes.report_for_debugging),
        needs.operate("cluster/debug/nodes"),
        node_docs.NODE_REPORT,
    ),
    _cold("flush", node_docs.FLUSH),
    _cold("gc", node_docs.GC),
    _cold("scrub", node_docs.SCRUB),
    *_report("/cluster/log-head", log_heads.newest, node_docs.LOG_HEAD),
    _order("/cluster/log-key/rotate", log_heads.rotate_key, node_docs.ROTATE_LOG_KEY),
    _order(
        "/cluster/subscription-keys/rotate",
        subscription_keys.rotate,
        node_docs.ROTATE_SUBSCRIPTION_KEY,
    ),
    _COMPACT,
    _members(Add, node_docs.ADD),
    _members(Promote, node_docs.PROMOTE),
    _members(Remove, node_docs.REMOVE),
    _TRANSFER,
    *(_alias(one, "/cluster/hot-cold-stats") for one in _COLD),
    _alias(_COMPACT, "/cluster/trigger-snapshot"),
    _alias(_COMPACT, "/cluster/purge-log"),
    _alias(_TRANSFER, "/cluster/transfer-leader"),
    *_get(Path("/auth/tokens"), Handler(tokens.list_all), needs.admin, token_docs.LIST),
    _admin("POST", "/auth/tokens", tokens.create, token_docs.CREATE),
    *_get(Path("/auth/tokens/{token}"), Handler(tokens.show), needs.admin, token_docs.SHOW),
    _admin("DELETE", "/auth/tokens/{token}", tokens.revoke, token_docs.REVOKE),
    _admin("POST", "/auth/tokens/{token}/rotate", tokens.rotate, token_docs.ROTATE),
    Route("POST", Path("/auth/sign"), Handler(signing.sign), needs.known, token_docs.SIGN),
    *_report("/cluster/limits", limits.list_all, limit_docs.LIST),
    *_limits("buckets", "bucket"),
    *_limits("identities", "identity"),
    *_get(Path("/console", "console"), Handler(console.page), OPEN, console_docs.PAGE),
    *_get(
        Path("/console/session", "console"),
        Handler(console.session),
        needs.known,
        console_docs.SESSION,
    ),
    *_get(Path("/console/{file}", "console"), Handler(console.file), OPEN, console_docs.FILE),
    _admin("POST", "/cluster/backup", backups.begin, node_docs.BEGIN_BACKUP),
    *_get(
        Path("/cluster/backup/{backup}/{number}"),
        Handler(backups.saved),
        needs.admin,
        node_docs.BACKUP_OBJECT,
    ),
    _admin("DELETE", "/cluster/backup/{backup}", backups.end, node_docs.END_BACKUP),
)
