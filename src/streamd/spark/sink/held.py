"""Rows that came from Spark and are not sent yet."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b

DIGEST_BYTES = 8


def digest(record: bytes) -> bytes:
    """What a plan knows a row by, within its stream, partition and batch."""
    return blake2b(record, digest_size=DIGEST_BYTES).digest()


class Held:
    """Rows by the streams they are for, in the order in which they came."""

    def __init__(self) -> None:
        self._streams: dict[str, _Rows] = {}
        self.rows = 0
        self.bytes = 0

    def add(self, stream: str, record: bytes) -> None:
        rows = self._streams.get(stream)
        if rows is None:
            rows = self._streams[stream] = _Rows()
        rows.add(record)
        self.rows += 1
        self.bytes += len(record)

    def take(self, stream: str, digests: bytes) -> list[bytes] | None:
        """The records of these digests, in that order; None, and nothing taken, while some of them
        have not come."""
        rows = self._streams.get(stream)
        records = None if rows is None else rows.take(digests)
        if records is not None:
            self.rows -= len(records)
            self.bytes -= sum(map(len, records))
            if rows is not None and not rows:
                del self._streams[stream]
        return records

    def cut(self, most_bytes: int, most_rows: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        """All rows, cut into requests of about so many bytes and at most so many rows for a
        stream: which stream, and the digests."""
        for stream, rows in self._streams.items():
            for digests in rows.cut(most_bytes, most_rows[stream]):
                yield stream, digests

    @property
    def streams(self) -> Sequence[str]:
        return list(self._streams)


class _Rows:
    """The rows for one stream. Taken in the order of their coming, as nearly always, they cost
    one comparison for all; an index is made when they are first wanted in another."""

    def __init__(self) -> None:
        # None is where a row was taken out of its turn.
        self._records: list[bytes | None] = []
        self._digests = bytearray()
        self._left = 0
        self._places: dict[bytes, deque[int]] | None = None

    def __bool__(self) -> bool:
        return self._left > 0

    def add(self, record: bytes) -> None:
        known_as = digest(record)
        if self._places is not None:
            self._places.setdefault(known_as, deque()).append(len(self._records))
        self._records.append(record)
        self._digests += known_as
        self._left += 1

    def take(self, digests: bytes) -> list[bytes] | None:
        if self._places is None:
            begin = self._digests[: len(digests)]
            if begin == digests:
                return self._take_first(len(digests) // DIGEST_BYTES)
            if digests.startswith(begin):
                return None
            self._places = {}
            for place, known_as in enumerate(split_digests(self._digests)):
                self._places.setdefault(known_as, deque()).append(place)
        return self._take_by(self._places, list(split_digests(digests)))

    def cut(self, most_bytes: int, most_rows: int) -> Iterator[bytes]:
        """The digests of all rows, in pieces."""
        count = size = 0
        digests = bytearray()
        for place, record in enumerate(self._records):
            if record is None:
                continue
            if count and (count == most_rows or size + len(record) > most_bytes):
                yield bytes(digests)
                digests.clear()
                count = size = 0
            start = place * DIGEST_BYTES
            digests += self._digests[start : start + DIGEST_BYTES]
            count += 1
            size += len(record)
        if count:
            yield bytes(digests)

    def _take_first(self, count: int) -> list[bytes]:
        records = [record for record in self._records[:count] if record is not None]
        del self._records[:count]
        del self._digests[: count * DIGEST_BYTES]
        self._left -= count
        return records

    def _take_by(
        self, places: dict[bytes, deque[int]], wanted: Sequence[bytes]
    ) -> list[bytes] | None:
        for known_as, count in Counter(wanted).items():
            if len(places.get(known_as, ())) < count:
                return None
        records = []
        for known_as in wanted:
            place = places[known_as].popleft()
            record = self._records[place]
            assert record is not None
            records.append(record)
            self._records[place] = None
        self._left -= len(records)
        return records


def split_digests(digests: bytes | bytearray) -> Iterator[bytes]:
    """Digests that are end to end, one by one."""
    for at in range(0, len(digests), DIGEST_BYTES):
        yield bytes(digests[at : at + DIGEST_BYTES])
