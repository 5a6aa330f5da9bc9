"""The states of a connection, and which of them may follow which.

```
     in the reactor                           in a task of its own

   +-> IDLE -----------------------+------> TASK_IDLE <---------+
   |    |  ^                       |         |      |           |
   |    |  +------ given back -----|---------+      | part of   |
   |    | part of a head           |         |      v a head    |
   |    |---------> HEAD ----+     |         |   TASK_HEAD      |
   |    |                    |     |         v      |           |
   |    |<-------------------+     +--> TASK_BUSY <-+           |
   |    v  a whole request   |         ^   | | ^ |              |
   +- ANSWERING -------------+---------+   | | | +-- answered --+
 sent   |  ^     what must wait            | v |
        v  | woken                         | TASK_BODY
      PARKED <--------- waits for its stream
```

Every state leads to ENDED besides. A transition that is not in the table is a bug, and ends the
connection. Over TLS a connection enters TASK_IDLE with its handshake and never returns to the
reactor: it waits for its stream in TASK_BUSY. HTTP/2 is one TASK_BUSY to the end.

What does not follow from the state is kept beside it:

- `Connection.hung_up` (the client sends nothing more) and `has_more` (the socket may hold bytes
  that the epoll has reported already) are about the socket, and may change in any state.
- Which connections the reactor does not receive for is the reactor's set `_paused`, which the batch
  I/O reads: those that are ANSWERING or PARKED, and those whose next turn is due.
- `WireChannel.is_open` (a live response has begun) is about the response. A response may be PARKED
  with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum

import structlog

log = structlog.get_logger("streamd.http")


class State(IntEnum):
    """What a connection waits for, and whether the reactor or its task does."""

    IDLE = 0  # The next request.
    HEAD = 1  # The rest of a request's head.
    ANSWERING = 2  # The outcome of a write.
    PARKED = 3  # The change of a stream, or a deadline, for a live read.
    TASK_IDLE = 4
    TASK_HEAD = 5
    TASK_BODY = 6  # The rest of a body that the handler gets whole.
    TASK_BUSY = 7  # A handler, or its client that receives an answer, or sends a body in pieces.
    ENDED = 8


FOLLOWING: Mapping[State, frozenset[State]] = {
    State.IDLE: frozenset(
        (State.HEAD, State.ANSWERING, State.TASK_IDLE, State.TASK_BUSY, State.ENDED)
    ),
    State.HEAD: frozenset((State.ANSWERING, State.TASK_BUSY, State.ENDED)),
    State.ANSWERING: frozenset((State.IDLE, State.PARKED, State.TASK_BUSY, State.ENDED)),
    State.PARKED: frozenset((State.ANSWERING, State.ENDED)),
    State.TASK_IDLE: frozenset((State.IDLE, State.TASK_HEAD, State.TASK_BUSY, State.ENDED)),
    State.TASK_HEAD: frozenset((State.TASK_BUSY, State.ENDED)),
    State.TASK_BODY: frozenset((State.TASK_BUSY, State.ENDED)),
    # To itself when it goes on to refuse the request that it was busy with.
    State.TASK_BUSY: frozenset(
        (State.TASK_BUSY, State.TASK_BODY, State.TASK_IDLE, State.PARKED, State.ENDED)
    ),
    State.ENDED: frozenset(),
}
BETWEEN_REQUESTS = frozenset((State.IDLE, State.TASK_IDLE))


class WrongTransition(Exception):
    """A connection was to enter a state that may not follow its own: a bug of ours. It ends that
    connection, by `end`, and no other."""

    def __init__(self, before: State, after: State, end: Callable[[], None]) -> None:
        super().__init__(f"{before.name} to {after.name}")
        self._end = end

    def report(self) -> None:
        """Log the bug. Called where the exception is handled."""
        log.exception("connection ended by a bug")

    def contain(self) -> None:
        """Log the bug, and end the connection."""
        self.report()
        self._end()
