"""What a consumer of a whole stream does where the specification leaves the choice to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from streamd.state.events import ChangeEvent, StateError
from streamd.state.schemas import InvalidValue

Choice = Literal["ignore", "error"]
Fallback = Callable[[ChangeEvent, InvalidValue], Any]


class UnknownType(StateError):
    """An event has a type of no collection, and the policy is to stop."""


class StreamReset(StateError):
    """The stream was reset, and the policy is to stop (section 4.2, rule 4)."""


class Policies(Struct, frozen=True, kw_only=True):
    """How to treat events that cannot be applied.

    `"ignore"` skips the event with a warning, except that unknown types pass in silence: other
    readers of the stream need them. `"error"` stops at the batch that has it, and applies none of
    that batch.

    - `unknown_type`: no collection has the type of the event.
    - `missing_value`: an insert or update has no value (section 4.1, rule 2).
    - `invalid_value`: the value breaks the schema (section 7, rule 3). The entity keeps the value
      that it had. A function `(event, error) -> value` gives another one instead.
    - `malformed`: the message is not a State Event (section 4).
    - `reset`: `"clear"` forgets all entities (section 4.2, rule 4); `"ignore"` goes on with them.
    """

    unknown_type: Choice = "ignore"
    missing_value: Choice = "ignore"
    invalid_value: Choice | Fallback = "ignore"
    malformed: Choice = "ignore"
    reset: Literal["clear", "ignore", "error"] = "clear"
