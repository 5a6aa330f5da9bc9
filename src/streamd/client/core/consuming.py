"""A consumer: follows a stream from the position that it kept last, and keeps how far it came."""

from __future__ import annotations

import os
from typing import Any

from streamd.client.core.keeping import keeper
from streamd.client.core.messages import Form, Place, messages
from streamd.client.core.reading import Incarnation, Live, incarnation_tag
from streamd.client.core.steps import Flow
from streamd.client.core.streams import StreamFlows
from streamd.client.positions import Positions, StreamPositions
from streamd.client.values import NOW


class ConsumerFlows:
    """The state of a consumer.

    What is kept is `INCARNATION@POSITION`: where the stream was replaced, the position means
    nothing. The first part is empty if the server does not tell.
    """

    def __init__(
        self,
        stream: StreamFlows,
        name: str,
        positions: Positions | StreamPositions,
        kind: Any,
        start: str,
        live: Live,
    ) -> None:
        if not name:
            raise ValueError("a consumer has a name")
        self.name = name
        self.stream = stream
        # The position after the last message that the caller received; None before the first.
        self.position: str | None = None
        self._from = Place(start).position
        self._live = live
        self._form = Form(stream.name.written, kind, offsets=True)
        self._same = Incarnation(stream.session)
        self._keeper = keeper(positions, stream.session, f"{name} of {stream.name.path}")
        self._process: int | None = None
        self._is_keeping = False

    def messages(self) -> Flow[None]:
        """Emit pairs of a position and a message, after those that were handled."""
        yield from self._begin()
        place = Place(self._from if self.position is None else self.position)
        chunks = self.stream.follow(place.offset, self._live, self._same)
        yield from messages(chunks, place, self._form)

    def _begin(self) -> Flow[None]:
        """Take over, unless that was done."""
        if self._process is not None:
            return
        kept = yield from self._keeper.take_over()
        self._process = os.getpid()
        if kept is not None:
            tag, _, self._from = kept.partition("@")
            self._same = Incarnation(self.stream.session, tag or None)
        elif self._from == NOW:
            # A start that ended before its first commit would leave out what came meanwhile.
            yield from self._move(NOW)

    def commit(self) -> Flow[None]:
        """Keep the position after the last message that the caller has got."""
        if self.position is not None:
            yield from self._keep(self._same, self.position)

    def seek(self, position: str) -> Flow[None]:
        """Go on at another position, and keep it."""
        wanted = Place(position).position
        yield from self._begin()
        yield from self._move(wanted)

    def _move(self, position: str) -> Flow[None]:
        same = Incarnation(self.stream.session)
        if position == NOW:
            info = yield from self.stream.head()
            position, same.tag = info.next_offset, incarnation_tag(info.etag)
        yield from self._keep(same, position)
        self._same, self._from, self.position = same, position, None

    def _keep(self, same: Incarnation, position: str) -> Flow[None]:
        if self._process != os.getpid():
            raise ValueError("a consumer is used in the process that began it, not in a fork of it")
        if self._is_keeping:
            raise RuntimeError("another thread or task keeps this consumer's position")
        self._is_keeping = True
        try:
            yield from self._keeper.keep(f"{same.tag or ''}@{position}")
        finally:
            self._is_keeping = False
