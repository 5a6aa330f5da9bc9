"""Answers to small reads, while nothing changes them.

Many readers ask for the same few records: all that follow a stream by polling, at each append. The
second one gets the answer of the first. An answer is never out of date, because its key has all
that it depends on: a changed stream has another key, and the old answers are dropped with time.
"""

from __future__ import annotations

from streamd.http.protocol.fields import ReadQuery
from streamd.http.protocol.messages import Response
from streamd.http.protocol.wire import body_parts

# Of the bodies: 4 MiB together, besides as much for their heads.
MAX_ANSWERS = 4096
MAX_BODY_BYTES = 1024

# A stream's incarnation, number of records, size and close; and all parameters of the read.
Key = tuple[int, int, int, bool, ReadQuery]


class RecentAnswers:
    """Up to `MAX_ANSWERS` answers of at most `MAX_BODY_BYTES`. Nobody may change them."""

    def __init__(self) -> None:
        self._answers: dict[Key, Response] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key) -> Response | None:
        return self._answers.get(key)

    def keep(self, key: Key, answer: Response) -> None:
        """Keep an answer, if it is small."""
        parts, size = body_parts(answer.body)
        if size > MAX_BODY_BYTES:
            return
        if len(self._answers) >= MAX_ANSWERS:
            self._answers.clear()
        # A copy: a slice would keep the whole chunk in memory that it was cut from.
        body = b"".join(parts)
        self._answers[key] = Response(answer.status, answer.head, body, shows=answer.shows)
