"""Rows that Spark delivered and that are not sent yet."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, chain

DIGEST_BYTES = 8
_Places = defaultdict[bytes, deque[int]]
_NOTHING_HASHED = blake2b(digest_size=DIGEST_BYTES)


def digests_of(records: Iterable[bytes]) -> bytes:
    """The digests by which a plan knows rows, within their stream, partition and batch, end to
    end."""
    found = []
    for record in records:
        # Half the time of a hash of 100 bytes goes into its parameters; a copy already has them.
        one = _NOTHING_HASHED.copy()
        one.update(record)
        found.append(one.digest())
    return b"".join(found)


class UnsentRows:
    """Rows by the streams they are for, in the order of their arrival."""

    def __init__(self) -> None:
        self._streams: dict[str, _Rows] = {}
        self.rows = 0
        self.bytes = 0

    def add(self, stream: str, records: Sequence[bytes]) -> None:
        rows = self._streams.get(stream)
        if rows is None:
            rows = self._streams[stream] = _Rows()
        rows.add(records)
        self.rows += len(records)
        self.bytes += sum(map(len, records))

    def take(self, stream: str, digests: bytes) -> list[bytes] | None:
        """The records with these digests, in that order; None, and nothing is taken, while some of
        them have not arrived."""
        rows = self._streams.get(stream)
        records = None if rows is None else rows.take(digests)
        if records is not None:
            self.rows -= len(records)
            self.bytes -= sum(map(len, records))
            if rows is not None and not rows:
                del self._streams[stream]
        return records

    def cut(self, most_bytes: int, most_rows: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        """All rows, cut into requests of about `most_bytes` and at most `most_rows` for a stream:
        each as its stream and the digests."""
        for stream, rows in self._streams.items():
            for digests in rows.cut(most_bytes, most_rows[stream]):
                yield stream, digests

    @property
    def streams(self) -> Sequence[str]:
        return list(self._streams)


class _Rows:
    """The rows for one stream. If they are taken in the order of arrival, which is nearly always
    so, one comparison serves for all; an index is built when another order is first wanted."""

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._digests = bytearray()
        self._left = 0
        # The places of the rows that are not taken yet, by their digests.
        self._places: _Places | None = None

    def __bool__(self) -> bool:
        return self._left > 0

    def add(self, records: Sequence[bytes]) -> None:
        digests = digests_of(records)
        if self._places is not None:
            _index(self._places, digests, len(self._records))
        self._records += records
        self._digests += digests
        self._left += len(records)

    def take(self, digests: bytes) -> list[bytes] | None:
        if self._places is None:
            begin = self._digests[: len(digests)]
            if begin == digests:
                return self._take_first(len(digests) // DIGEST_BYTES)
            if digests.startswith(begin):
                return None
            self._places = defaultdict(deque)
            _index(self._places, self._digests)
        return self._take_by(self._places, list(split_digests(digests)))

    def cut(self, most_bytes: int, most_rows: int) -> Iterator[bytes]:
        """The digests of all rows, in pieces."""
        self._forget_taken()
        ends = list(accumulate(map(len, self._records), initial=0))
        first = 0
        while first < self._left:
            fitting = bisect_right(ends, ends[first] + most_bytes) - 1
            end = max(first + 1, min(first + most_rows, fitting))
            yield bytes(self._digests[first * DIGEST_BYTES : end * DIGEST_BYTES])
            first = end

    def _forget_taken(self) -> None:
        """Close the gaps where rows were taken out of turn."""
        if self._places is not None:
            left = sorted(chain.from_iterable(self._places.values()))
            digests = list(split_digests(self._digests))
            self._digests = bytearray().join(digests[place] for place in left)
            self._records = [self._records[place] for place in left]
            self._places = None

    def _take_first(self, count: int) -> list[bytes]:
        records = self._records[:count]
        del self._records[:count]
        del self._digests[: count * DIGEST_BYTES]
        self._left -= count
        return records

    def _take_by(self, places: _Places, wanted: Sequence[bytes]) -> list[bytes] | None:
        for known_as, count in Counter(wanted).items():
            if len(places.get(known_as, ())) < count:
                return None
        records = []
        for known_as in wanted:
            place = places[known_as].popleft()
            records.append(self._records[place])
            self._records[place] = b""  # so that it is freed when it is sent
        self._left -= len(records)
        return records


def _index(places: _Places, digests: bytes | bytearray, first: int = 0) -> None:
    """Note the places of the rows with these digests, of which the first is at `first`."""
    for place, known_as in enumerate(split_digests(digests), first):
        places[known_as].append(place)


def split_digests(digests: bytes | bytearray) -> Iterator[bytes]:
    """The single digests in a run of them."""
    for at in range(0, len(digests), DIGEST_BYTES):
        yield bytes(digests[at : at + DIGEST_BYTES])
