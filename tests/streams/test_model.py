"""Random commands, flushes and crashes: the machine stays what plain lists say it is."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from streamd.streams import keys
from tests.streams.driver import EVERYTHING, key
from tests.streams.reference import ReferenceStream
from tests.streams.stateful_store import StoreRules


class MachineAgainstLists(StoreRules):
    # -- what always holds --------------------------------------------------------------------

    @invariant()
    def streams_are_what_the_lists_say(self) -> None:
        for name in "abcd":
            expected = self.reference.streams.get(name)
            stream = self.driver.find(name)
            if expected is None or stream is None:
                assert stream is expected
                continue
            assert (stream.deleted, stream.forks) == (expected.deleted, expected.forks)
            self.reads_agree(name, expected)

    def reads_agree(self, name: str, expected: ReferenceStream) -> None:
        assert self.driver.stream(name).tail == expected.tail
        if expected.deleted:
            assert self.driver.stream(name).snapshot is None
            return
        assert self.driver.stream(name).earliest == expected.earliest
        body = None if expected.snapshot is None else expected.snapshot.body
        assert self.driver.blob(name) == body
        assert self.driver.boundaries(name) == expected.boundaries[expected.earliest.record :]
        content = b"".join(expected.readable)
        for max_bytes in (1, 7, 23, EVERYTHING):
            assert self.driver.content(name, max_bytes=max_bytes) == content

    @invariant()
    def all_is_counted(self) -> None:
        header = self.driver.state.header
        assert header.streams == len(self.reference.streams)
        bucket = self.driver.state.buckets.get(b"b")
        assert (bucket is not None) is self.reference.bucket
        counts = (bucket.streams, bucket.hidden) if bucket else (0, 0)
        rows = [stream for stream in self.streams() if stream.hot_at_ms is not None]
        blobs = {s.snapshot.blob_id for s in self.streams() if s.snapshot is not None}
        hot = sum(stream.size - stream.cold.byte for stream in rows)
        for blob_id in blobs:
            blob = self.driver.state.blobs.get(keys.number(blob_id))
            assert blob is not None
            hot += blob.size - blob.cold.byte
        assert header.hot_bytes == hot
        for stream in self.streams():
            assert (stream.hot_at_ms is not None) == (stream.tail != stream.cold_from)
        hidden = sum(stream.deleted for stream in self.reference.streams.values())
        assert counts == (len(self.reference.streams), hidden)

    def teardown(self) -> None:
        """Rows that no stream owns are noted for removal."""
        if self.flushing is not None:
            self.end_flush()
        self.driver.flush()
        rows = self.driver.store.rows
        streams = [s for n in "abcd" if (s := self.driver.find(n)) is not None]
        owned = {s.stream_id for s in streams}
        owned |= {s.snapshot.blob_id for s in streams if s.snapshot is not None}
        owned |= {keys.parse_id(row) for row in rows if row[:1] == keys.UPLOAD}
        noted = {keys.parse_id(row) for row in rows if row[:1] == keys.GARBAGE}
        holding = {int.from_bytes(row[1:9], "big") for row in rows if row[:1] in b"dpBc"}
        assert holding <= owned | noted
        assert not owned & noted
        owners = [keys.parse_hot(row)[1] for row in rows if row[:1] == keys.HOT]
        assert len(owners) == len(set(owners))
        hot = [owner for owner in owners if keys.blob_in_owner(owner) is None]
        found = [(key(name), self.driver.find(name)) for name in "abcd"]
        assert sorted(hot) == [k for k, stream in found if stream and stream.hot_at_ms is not None]
        referred = {keys.parse_id(row) for row in rows if row[:1] == keys.BLOB}
        assert referred == {s.snapshot.blob_id for s in streams if s.snapshot is not None}


class MachineForLonger(MachineAgainstLists):
    """The same, with more examples."""


MachineAgainstLists.TestCase.settings = settings(max_examples=40, stateful_step_count=50)
TestMachineAgainstLists = MachineAgainstLists.TestCase
MachineForLonger.TestCase.settings = settings(max_examples=300, stateful_step_count=50)
TestMachineForLonger = pytest.mark.long(MachineForLonger.TestCase)
