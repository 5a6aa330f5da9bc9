"""Requests travel to the leader as JSON, each under a name of its own."""

from __future__ import annotations

import msgspec
import pytest

from streamd.streams.operations.hosts import Host
from streamd.streams.operations.model import Arguments
from streamd.streams.operations.requests import (
    Begin,
    Cancel,
    Confirm,
    OperationRequest,
    Pause,
    RaiseFeatures,
    Resume,
)


@pytest.mark.parametrize(
    "request_",
    [
        Begin("upgrade", Arguments(release="2.0"), "ops", dry_run=True),
        Pause(1, "ops"),
        Resume(1),
        Cancel(2**63 - 1),
        Confirm(1),
        RaiseFeatures("ops"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_request_is_read_as_it_was_written(request_: OperationRequest) -> None:
    raw = msgspec.json.encode(request_)
    assert msgspec.json.decode(raw, type=OperationRequest) == request_


def test_an_id_begins_at_one() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"type":"pause-operation","operation_id":0}', type=OperationRequest)


def test_hosts_with_the_same_addresses_are_the_same() -> None:
    assert Host(1, "a:1", "a:2") == Host(1, "a:1", "a:2") != Host(2, "a:1", "a:2")
