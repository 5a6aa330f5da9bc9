"""Events as JSON, for tests."""

from __future__ import annotations

import json
from typing import Any

from streamd.state import ChangeEvent, decode_event

ABSENT: Any = object()


def change(
    operation: str, key: str, value: Any = ABSENT, *, type_: str = "user", **more: Any
) -> dict[str, Any]:
    """A Change Event as JSON; `headers` adds to its headers, other names to the event."""
    headers = {"operation": operation, **more.pop("headers", {})}
    given = {} if value is ABSENT else {"value": value}
    return {"type": type_, "key": key, "headers": headers, **given, **more}


def control(kind: str, **headers: str) -> dict[str, Any]:
    """A Control Event as JSON."""
    return {"headers": {"control": kind, **headers}}


def batch(*events: Any) -> bytes:
    """Messages as a read answers them."""
    return json.dumps(events).encode()


def decoded(event: Any) -> ChangeEvent:
    """A Change Event from JSON."""
    found = decode_event(json.dumps(event))
    assert isinstance(found, ChangeEvent)
    return found
