"""Appends that are stored once, however often their request is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from uuid import uuid4

from streamd.client import Appended, AsyncStream, SequenceGap

_MAX_KEY_CHARACTERS = 200


class Lanes:
    """Producer ids of this program, each of which carries one append after another.

    So the stream remembers as many ids as appends were under way at once, not one for each append.
    A lane counts on only after an acknowledged append. After any failure it is left: a request
    that is still on its way could take effect later, and a new one with its number would pass for
    a repetition.
    """

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self._free: list[tuple[str, int]] = []

    async def append(self, messages: Sequence[bytes]) -> Appended:
        """Append messages together. Raises `StreamdError`."""
        lane, number = self._free.pop() if self._free else (f"state:{uuid4()}", 0)
        try:
            appended = await self._stream.append_many(messages, once=(lane, number))
        except SequenceGap:
            # The stream was created again: it knows no lanes, and has none of these messages.
            self._free.clear()
            return await self.append(messages)
        self._free.append((lane, number + 1))
        return appended

    async def append_as(self, txid: str, messages: Sequence[bytes]) -> Appended:
        """Append the messages of a transaction that any process may repeat by its name."""
        if not txid.isascii() or not txid.isprintable() or len(txid) > _MAX_KEY_CHARACTERS:
            txid = sha256(txid.encode("utf-8", "surrogatepass")).hexdigest()
        return await self._stream.append_many(messages, once=f"txid:{txid}")
