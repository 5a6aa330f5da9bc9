"""The Python client of Durable Streams. The commands of ``streamd`` and Spark's formats use it.

`Client` blocks; `AsyncClient` has the same methods for asyncio and Trio. docs/python.md shows how
to use them.

    from streamd.client import Client

    with Client("http://127.0.0.1:4437") as client:
        stream = client.stream("agents/run-1")
        stream.create("application/json")
        stream.append_json({"step": 1})
        for message in stream.follow_json():
            print(message)

How it is built. All decisions are flows without I/O in `core`: what is sent, when, how often and to
which node. `driving` and `async_driving` carry flows out with httpx. `blocking` and `stream`,
`asynchronous` and `async_stream` are the classes that users see, one line a method; `producing` and
`async_producing` send a producer's batches; `consuming` and `async_consuming` are consumers.
`subscription` has subscriptions and their workers, `waking` a wake whose lease is renewed while its
block runs, `receiving` what verifies webhooks, by the rules in `webhooks`. `blocking`, `stream`,
`consuming`, `subscription` and `receiving` are generated from the asynchronous ones, by `make fix`.
`errors` has an exception for each stable code, `values` what methods return, `epochs` where
producers keep theirs, and `positions` where consumers do.

Invariants:

- Nothing is shown twice or left out, whatever is killed: data counts only with the offset after it.
- A producer's body is stored once, however often it is sent.
- Memory is bounded: an event, an answer, a part's head and what a producer holds have limits.
  Bodies of any size are passed on in pieces.
- An address that never answered is not retried unless the caller asks for it.
- Messages never show credentials of a URL (`streamd.process.redaction`), and credentials go only
  to the nodes that the caller named.

The client must never import the server (a command would start as slowly as a node), or parse what
it need not: JSON passes through digit for digit. Only `connecting` and the drivers know httpx.

Read on: docs/python.md, docs/api.md for the requests, docs/decisions/ for why the parsers of `sse`
and `multipart` are our own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamd.client.blocking import Bucket, Client
from streamd.client.consuming import Consumer
from streamd.client.core.reading import Live
from streamd.client.core.steps import Answer
from streamd.client.epochs import ClockEpochs, Epochs, FileEpochs, MemoryEpochs
from streamd.client.errors import (
    AlreadyClaimed,
    AlreadyExists,
    BucketNotEmpty,
    BucketNotFound,
    ConsumerFenced,
    ContentTypeMismatch,
    Fenced,
    InvalidOffset,
    InvalidRequest,
    LeaseLost,
    MessageMismatch,
    NoPendingWork,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    OffsetGone,
    OutcomeUnknown,
    PreconditionFailed,
    ProducerFenced,
    QuotaExceeded,
    Refused,
    SequenceConflict,
    SequenceGap,
    SnapshotNotFound,
    StreamClosed,
    StreamdError,
    StreamGone,
    StreamNotFound,
    StreamReplaced,
    SubscriptionNotFound,
    TooLarge,
    TooManyRequests,
    Unavailable,
    Unreachable,
    Unsendable,
    WebhookUrlRejected,
)
from streamd.client.limits import time_limit
from streamd.client.names import BadName
from streamd.client.positions import FilePositions, MemoryPositions, Positions, StreamPositions
from streamd.client.producing import Producer
from streamd.client.receiving import Webhooks
from streamd.client.stream import Fork, Snapshots, Stream
from streamd.client.subscription import PullWorker, Subscription
from streamd.client.subscription_values import (
    SubscribedStream,
    SubscriptionInfo,
    WebhookSigning,
    WebhookTarget,
)
from streamd.client.values import (
    NOW,
    START,
    Appended,
    Bootstrap,
    BucketInfo,
    Chunk,
    ListedStream,
    Snapshot,
    StreamInfo,
)
from streamd.client.waking import Wake
from streamd.client.webhooks import BadWebhook, Notification

if TYPE_CHECKING:
    from streamd.client.async_consuming import AsyncConsumer
    from streamd.client.async_driving import AsyncIteration
    from streamd.client.async_producing import AsyncProducer
    from streamd.client.async_receiving import AsyncWebhooks
    from streamd.client.async_stream import AsyncFork, AsyncSnapshots, AsyncStream
    from streamd.client.async_subscription import AsyncPullWorker, AsyncSubscription
    from streamd.client.async_waking import AsyncWake
    from streamd.client.asynchronous import AsyncBucket, AsyncClient
    from streamd.client.driving import Iteration

# Imported when they are first used: a program that only blocks needs no event loop, and httpx takes
# longer to import than all the rest.
_LATER = {
    "AsyncBucket": "asynchronous",
    "AsyncClient": "asynchronous",
    "AsyncConsumer": "async_consuming",
    "AsyncFork": "async_stream",
    "AsyncIteration": "async_driving",
    "AsyncProducer": "async_producing",
    "AsyncPullWorker": "async_subscription",
    "AsyncSnapshots": "async_stream",
    "AsyncStream": "async_stream",
    "AsyncSubscription": "async_subscription",
    "AsyncWake": "async_waking",
    "AsyncWebhooks": "async_receiving",
    "Iteration": "driving",
}

__all__ = [
    "NOW",
    "START",
    "AlreadyClaimed",
    "AlreadyExists",
    "Answer",
    "Appended",
    "AsyncBucket",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncFork",
    "AsyncIteration",
    "AsyncProducer",
    "AsyncPullWorker",
    "AsyncSnapshots",
    "AsyncStream",
    "AsyncSubscription",
    "AsyncWake",
    "AsyncWebhooks",
    "BadName",
    "BadWebhook",
    "Bootstrap",
    "Bucket",
    "BucketInfo",
    "BucketNotEmpty",
    "BucketNotFound",
    "Chunk",
    "Client",
    "ClockEpochs",
    "Consumer",
    "ConsumerFenced",
    "ContentTypeMismatch",
    "Epochs",
    "Fenced",
    "FileEpochs",
    "FilePositions",
    "Fork",
    "InvalidOffset",
    "InvalidRequest",
    "Iteration",
    "LeaseLost",
    "ListedStream",
    "Live",
    "MemoryEpochs",
    "MemoryPositions",
    "MessageMismatch",
    "NoPendingWork",
    "NotAuthenticated",
    "NotFound",
    "NotPermitted",
    "Notification",
    "OffsetGone",
    "OutcomeUnknown",
    "Positions",
    "PreconditionFailed",
    "Producer",
    "ProducerFenced",
    "PullWorker",
    "QuotaExceeded",
    "Refused",
    "SequenceConflict",
    "SequenceGap",
    "Snapshot",
    "SnapshotNotFound",
    "Snapshots",
    "Stream",
    "StreamClosed",
    "StreamGone",
    "StreamInfo",
    "StreamNotFound",
    "StreamPositions",
    "StreamReplaced",
    "StreamdError",
    "SubscribedStream",
    "Subscription",
    "SubscriptionInfo",
    "SubscriptionNotFound",
    "TooLarge",
    "TooManyRequests",
    "Unavailable",
    "Unreachable",
    "Unsendable",
    "Wake",
    "WebhookSigning",
    "WebhookTarget",
    "WebhookUrlRejected",
    "Webhooks",
    "time_limit",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
