"""Commands that no client's request can cause are found before they are proposed."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise

import pytest
from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.checks import are_of_clients, fault, is_of_leader, payload_bytes
from streamd.streams.commands import (
    AddLogKey,
    Append,
    BeginUpload,
    Command,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    DropUploads,
    OpenSession,
    PublishSnapshot,
    RenewIncarnations,
    StorePart,
    Sweep,
    Touch,
    brings_bytes,
)
from streamd.streams.etags import incarnation_base, parse_tag, state_tag
from streamd.streams.log_keys import LogKey
from streamd.streams.model import (
    ForkRequest,
    IfMatch,
    ProducerStamp,
    Settings,
    Verdict,
    VerifiedPosition,
    Version,
)
from streamd.streams.offsets import Position
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
from streamd.streams.subscriptions.model import Ack, FenceStamp, WakeStamp
from streamd.streams.subscriptions.signing_keys import SubscriptionKey
from tests.streams.driver import JSON, TEXT, key
from tests.streams.subscribed import HOOK, PULL

KEY = key("s")
AT = (2, 30)
FOUND = VerifiedPosition(7, Verdict.BOUNDARY, *AT)
DIGEST = sha256(b"state").digest()

APPEND = Append(KEY, TEXT, b"record", [6], seq="1", producer=ProducerStamp("p", 0, 0))
CLOSE = Append(KEY, "", b"", [], close=True)
CREATE = Create(KEY, Settings(TEXT))
FORK = Create(KEY, Settings(fork=ForkRequest(key("t"), AT)), finding=FOUND)
BEGIN = BeginUpload(KEY, AT, FOUND)
PUBLISH = PublishSnapshot(KEY, AT, TEXT, 5, DIGEST, data=b"state", finding=FOUND)
LOG_KEY = LogKey(1, bytes(32), b"", bytes(64))
CONDITION = IfMatch((Version(7, 2, 30, False),))

STAMP = WakeStamp(7, 1, "w_1")
FENCE = FenceStamp(7, 1, "w_" + "0" * 32, "worker", 1_000)
SUBSCRIPTION_KEY = SubscriptionKey(1, bytes(32), bytes(64))
PUT = PutSubscription("hook", HOOK)
ACK = AcknowledgeWake("pull", STAMP, [Ack(KEY, 1, 6)], True)

RIGHT: list[Command] = [
    APPEND,
    replace(APPEND, if_match=CONDITION),
    CLOSE,
    Append(KEY, JSON, b"1,22,", [2, 3]),
    CREATE,
    Create(KEY, Settings(TEXT, ttl_ms=1000), if_match=IfMatch()),
    Create(KEY, Settings(expires_at="2030-01-01T00:00:00Z", expires_at_ms=1_893_456_000_000)),
    Create(KEY, Settings(), data=b"1,", lengths=[2], cut_as=JSON),
    FORK,
    Create(KEY, Settings(fork=ForkRequest(key("t"))), finding=VerifiedPosition()),
    Create(
        KEY,
        Settings(fork=ForkRequest(key("t"), AT, 3)),
        finding=VerifiedPosition(7, Verdict.BOUNDARY, 5, 40),
    ),
    Delete(KEY, CONDITION),
    CreateBucket(b"bucket"),
    DeleteBucket(b"bucket"),
    BEGIN,
    replace(BEGIN, finding=VerifiedPosition()),
    StorePart(1, 0, b"part"),
    PUBLISH,
    replace(PUBLISH, upload_id=3, data=b""),
    Touch([(KEY, 1, 0)]),
    Sweep([KEY]),
    DropUploads([1, 2]),
    AddLogKey(1, LOG_KEY),
    PUT,
    PutSubscription("pull", PULL, [key("a")], "jwt:somebody"),
    DeleteSubscription("hook"),
    LinkStreams("hook", [KEY]),
    UnlinkStream("hook", KEY),
    WakeSubscription("hook"),
    ClaimWake("pull", "worker"),
    ACK,
    ReleaseWake("pull", STAMP),
    AddSubscriptionKey(SUBSCRIPTION_KEY),
    VerifyClaim(FENCE),
]


@pytest.mark.parametrize("command", RIGHT, ids=lambda command: type(command).__name__)
def test_commands_that_the_api_proposes_pass_the_checks(command: Command) -> None:
    assert fault(command) is None
    assert are_of_clients([command])


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (replace(APPEND, key=b"no bucket"), "key"),
        (replace(APPEND, key=b"b\0" + b"x" * keys.MAX_STREAM_KEY_BYTES), "key"),
        (replace(APPEND, key=b"b\0\xff"), "key"),
        (replace(APPEND, key=b"b\0a//b"), "key"),
        (replace(APPEND, key=b"b\0a\nb"), "key"),
        (replace(APPEND, content_type="text"), "content_type"),
        (replace(CLOSE, content_type=TEXT), "content_type"),
        (replace(CLOSE, close=False), "close"),
        (replace(APPEND, lengths=[6, 0]), "lengths"),
        (replace(APPEND, lengths=[5]), "lengths"),
        (Append(KEY, JSON, b"1 ", [2]), "data"),
        (Append(KEY, JSON, b"1,22,", [3, 2]), "data"),
        (Append(KEY, JSON, b"[,", [2]), "data"),
        (replace(APPEND, seq=""), "seq"),
        (replace(APPEND, seq="\u20ac"), "seq"),
        (replace(APPEND, producer=ProducerStamp("p", 0, -1)), "producer"),
        (replace(APPEND, producer=ProducerStamp("p", 2**53, 0)), "producer"),
        (replace(APPEND, if_match=IfMatch((Version(-1, 0, 0, False),))), "if_match"),
        (replace(APPEND, if_match=IfMatch((Version(1, 0, 10**16, False),))), "if_match"),
        (Create(KEY, Settings("text")), "settings"),
        (Create(KEY, Settings(ttl_ms=-1)), "settings"),
        (Create(KEY, Settings(expires_at="2030-01-01T00:00:00Z")), "settings"),
        (Create(KEY, Settings(expires_at="soon", expires_at_ms=0)), "settings"),
        (Create(KEY, Settings(fork=ForkRequest(b"no bucket"))), "settings"),
        (replace(CREATE, cut_as="text"), "cut_as"),
        (replace(FORK, finding=None), "finding"),
        (replace(FORK, finding=VerifiedPosition(-1)), "finding"),
        (replace(FORK, finding=VerifiedPosition(7, Verdict.BOUNDARY, 2, 31)), "finding"),
        (replace(FORK, settings=Settings(fork=ForkRequest(key("t")))), "finding"),
        (replace(FORK, settings=Settings(fork=ForkRequest(key("t"), AT, 3))), "finding"),
        (replace(Delete(KEY), key=b""), "key"),
        (CreateBucket(b"no/bucket"), "name"),
        (replace(BEGIN, at=(-1, 0)), "at"),
        (replace(BEGIN, finding=None), "finding"),
        (replace(BEGIN, at=(2, 31)), "finding"),
        (StorePart(0, 0, b"part"), "upload_id"),
        (StorePart(1, -1, b"part"), "number"),
        (StorePart(1, 0, b""), "data"),
        (replace(PUBLISH, content_type=""), "content_type"),
        (replace(PUBLISH, size=-1), "size"),
        (replace(PUBLISH, digest=b"short"), "digest"),
        (replace(PUBLISH, upload_id=-1), "upload_id"),
        (replace(PUBLISH, data=b"stat"), "data"),
        (Touch([(KEY, 0, 0)]), "reads"),
        (Sweep([b""]), "keys"),
        (DropUploads([0]), "ids"),
        (DropUploads([1], idle_ms=-1), "idle_ms"),
        (AddLogKey(1, replace(LOG_KEY, public_key=b"short")), "key"),
        (OpenSession(1, 1), "type"),
        (replace(PUT, subscription_id="a/b"), "subscription_id"),
        (replace(PUT, config=replace(HOOK, lease_ttl_ms=1)), "config"),
        (replace(PUT, config=replace(HOOK, pattern="")), "config"),
        (replace(PUT, keys=[b"no bucket"]), "keys"),
        (replace(PUT, keys=[KEY] * 1001), "keys"),
        (PutSubscription("pull", replace(PULL, wake_key=b"x")), "wake_key"),
        (PutSubscription("pull", PULL, [PULL.wake_key]), "keys"),
        (replace(PUT, owner="a\nb"), "owner"),
        (replace(PUT, owner="x" * 4097), "owner"),
        (DeleteSubscription(""), "subscription_id"),
        (LinkStreams("hook", []), "keys"),
        (UnlinkStream("hook", b""), "key"),
        (ClaimWake("pull", ""), "worker"),
        (replace(ACK, acks=[Ack(KEY, 10**16, 0)]), "acks"),
        (replace(ACK, acks=[Ack(b"", 0, 0)]), "acks"),
        (replace(ACK, stamp=replace(STAMP, wake_id="x" * 257)), "stamp"),
        (ReleaseWake("", STAMP), "subscription_id"),
        (AddSubscriptionKey(replace(SUBSCRIPTION_KEY, public_key=b"short")), "key"),
        (VerifyClaim(replace(FENCE, wake_id="x" * 257)), "stamp"),
        (BeginDelivery(7, "w_1", 1), "type"),
        (EndDelivery(7, "w_1", 1, True), "type"),
        (EndLeases([7]), "type"),
    ],
)
def test_the_faulty_field_of_an_impossible_command_is_named(command: Command, field: str) -> None:
    assert fault(command) == field
    assert not are_of_clients([CREATE, command])


def test_a_leaders_own_commands_are_refused_from_clients() -> None:
    assert is_of_leader(RenewIncarnations(1))
    assert not is_of_leader(CREATE)


@pytest.mark.parametrize(
    ("command", "size"),
    [(APPEND, 6), (CREATE, 0), (StorePart(1, 0, b"part"), 4), (PUBLISH, 5), (Delete(KEY), 0)],
)
def test_the_bytes_of_a_command_are_a_clients_payload(command: Command, size: int) -> None:
    assert payload_bytes(command) == size
    assert brings_bytes(command) == (size > 0)


def test_incarnations_of_two_clusters_or_groups_lie_far_apart_and_fit_a_tag() -> None:
    bases = [
        incarnation_base(group_id, cluster_id)
        for group_id in (0, 1, 2, 2**32 - 1)
        for cluster_id in ("", "one", "another")
    ]
    assert bases[0] == 0
    assert min(bases[1:]) >= 1 << 62
    assert min(later - former for former, later in pairwise(sorted(bases))) > 1 << 48
    for base in bases[1:]:
        version = parse_tag(state_tag(base, Position(*AT).token(), False))
        assert version == Version(base, *AT, False)


def test_group_0_has_the_bases_that_the_first_release_gave_out() -> None:
    assert incarnation_base(0) == 0
    assert incarnation_base(0, "one") == 8544106591765445504
