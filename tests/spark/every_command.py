"""A batch with one command of each kind, every field given, as the server writes it."""

from __future__ import annotations

from streamd.streams.codec import Batch, encode_batch
from streamd.streams.cold.scrubs import Scrub
from streamd.streams.commands import (
    AddLogKey,
    Append,
    Archived,
    BeginUpload,
    Command,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    DropSlices,
    DropUploads,
    EndProducers,
    FlushCold,
    ForgetPacks,
    MovedSlice,
    MoveSlices,
    NewSlice,
    OpenSession,
    PublishSnapshot,
    RaiseLevel,
    RecordOperation,
    RenewIncarnations,
    Scrubbed,
    SetLimits,
    StorePart,
    Sweep,
    Touch,
)
from streamd.streams.limits import Limits
from streamd.streams.log_keys import LogKey
from streamd.streams.model import (
    ForkRequest,
    IfMatch,
    LogPosition,
    LogTree,
    ProducerStamp,
    Settings,
    Verdict,
    VerifiedPosition,
    Version,
)
from streamd.streams.operations.model import Arguments, Operation, Step, StepRecord
from streamd.streams.sessions import PackageStamp
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    AddSubscriptionKey,
    BeginDelivery,
    ClaimWake,
    DeleteSubscription,
    EndDelivery,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    UnlinkStream,
    VerifyClaim,
    WakeSubscription,
)
from streamd.streams.subscriptions.model import (
    Ack,
    Credential,
    FenceStamp,
    SubscriptionConfig,
    WakeStamp,
)
from streamd.streams.subscriptions.signing_keys import SubscriptionKey
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken

NOW_MS = 1_700_000_000_000
_KEY = b"bucket\0stream"
_FORK = Settings(
    "application/json", 60_000, "2030-01-01T00:00:00Z", NOW_MS, ForkRequest(_KEY, (3, 17), 2)
)
_IF_MATCH = IfMatch((Version(7, 3, 17, False), Version(2**40, 0, 0, True)))
_STAMP = ProducerStamp("p", 1, 2, True)
_FINDING = VerifiedPosition(7, Verdict.BOUNDARY, 3, 17)

_TREE = LogTree(1, (bytes([5]) * 32, bytes([6]) * 32))
_SCRUB = Scrub(1, NOW_MS, True, (2, 1), "name", 3, 4, 5, ("m",), 1, ("d",), 1, 8, (1, 2, 3))
_STEP = StepRecord(
    Step("restart", 2, "b:1", 3, "1.0"), 1, NOW_MS, NOW_MS, 7, True, NOW_MS, "n", True
)
_OPERATION = Operation(
    1, 2, "upgrade", Arguments(2, ("a:1",), "1.0", 5), "ops", NOW_MS, (_STEP,), "failed", 1, "why",
    NOW_MS, NOW_MS, True, (1, 2), (3,),
)  # fmt: skip
_CONFIG = SubscriptionConfig("pull-wake", "bucket/*", "", b"bucket\0wakes", 1_000, "what for")
_WAKE = WakeStamp(7, 3, "w_1")
_FENCE = FenceStamp(7, 3, "w_1", "worker-1", NOW_MS, Credential.WAKE, True)

COMMANDS: list[Command] = [
    Create(b"bucket\0fork", _FORK, True, b"one,two,", [4, 4], True, _IF_MATCH, _FINDING, "a/b"),
    Append(_KEY, "text/plain", b"three", [5], True, "seq-1", _STAMP, _IF_MATCH, _FENCE),
    Delete(_KEY, IfMatch()),
    Touch([(_KEY, 7, NOW_MS)]),
    Sweep([_KEY, b"bucket\0fork"]),
    CreateBucket(b"bucket"),
    DeleteBucket(b"bucket"),
    BeginUpload(_KEY, (3, 17), _FINDING),
    StorePart(9, 1, b"part"),
    PublishSnapshot(_KEY, (3, 17), "text/plain", 4, bytes(32), 9, b"", _FINDING),
    DropUploads([9, 10], 1000),
    FlushCold(2, 1, "c/packs/1.pack", 100, [NewSlice(_KEY, 7, 0, 0, 3, 17, 30, 60, 5, bytes(16))]),
    DropSlices(7, [3, 9]),
    MoveSlices(2, 2, "c/packs/2.pack", 100, [MovedSlice(7, 3, 2, 1, 30, 60, 5)]),
    ForgetPacks([(2, 1), (2, 2)]),
    Archived(2, LogPosition(), LogPosition(5, 2, 0xE0000001, NOW_MS), True, _TREE),
    RenewIncarnations(2**40),
    Scrubbed(2, _SCRUB),
    OpenSession(2, 2**62, 17),
    CreateToken(2**62, "ci", bytes(32), ["append:agents/run-*", "read:*"], 86_400_000, bytes(32)),
    RotateToken(2**62, bytes(32), 3_600_000, 86_400_000, bytes(32)),
    RevokeToken(2**62),
    SetLimits("bucket", "*", Limits(1, 2, 3, 4, 5, 6, 7, 8, 9)),
    EndProducers(_KEY, ["p", "é"]),
    AddLogKey(1, LogKey(2, bytes([7]) * 32, bytes([8]) * 32, bytes([9]) * 64)),
    RecordOperation(_OPERATION),
    RaiseLevel(6),
    PutSubscription("mailer", _CONFIG, [_KEY], "token:ci"),
    DeleteSubscription("mailer"),
    LinkStreams("mailer", [_KEY]),
    UnlinkStream("mailer", _KEY),
    WakeSubscription("mailer"),
    ClaimWake("mailer", "worker-1"),
    AcknowledgeWake("mailer", _WAKE, [Ack(_KEY, 3, 17)], True),
    ReleaseWake("mailer", _WAKE),
    VerifyClaim(_FENCE),
    AddSubscriptionKey(SubscriptionKey(1, bytes(32), bytes(64), True, NOW_MS), True),
    BeginDelivery(7, "w_1", 2),
    EndDelivery(7, "w_1", 2, True, "why", [Ack(_KEY, 3, 17)], True),
    EndLeases([7, 8]),
]


def every_command() -> list[bytes]:
    """Payloads of entries: one with all commands, one for each by itself, one with packages."""
    packages = [PackageStamp(1, 17, 4, 3, 2), PackageStamp(2, 18, 0, 0, 1)]
    return [
        encode_batch(Batch(NOW_MS, [COMMANDS[1]], [PackageStamp(1, 17, 3, 3, 1)])),
        encode_batch(Batch(NOW_MS, COMMANDS)),
        encode_batch(Batch(NOW_MS + 1, COMMANDS[:4], packages)),
        *(encode_batch(Batch(NOW_MS + 2, [command])) for command in COMMANDS),
    ]
