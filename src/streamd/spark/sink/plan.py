"""The decisions about one partition of one batch: the journal of a part."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import msgspec

from streamd.client import (
    Answer,
    Client,
    NotFound,
    OffsetGone,
    ProducerFenced,
    Refused,
    StreamNotFound,
)
from streamd.client.names import parse_name
from streamd.protocol.headers import (
    CONTENT_TYPE,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    STREAM_FIRST_OFFSET,
    STREAM_NEXT_OFFSET,
    STREAM_TTL,
    STREAM_UP_TO_DATE,
)
from streamd.spark.sink.errors import Fenced

# How many bytes of finished batches may remain in a journal.
MOST_STALE_BYTES = 256 * 1024
# The journal of a write without an id, which nothing can repeat, expires by itself.
NAMELESS_TTL_S = 24 * 3600
_REMEMBERED = 10_000
_START = "-1"
_JSON = "application/json"


@dataclass(frozen=True)
class Part:
    """One partition of a sink in one batch; `nameless` is a write that nothing can repeat.

    `run` differs between two runs of a query, and `attempt` between two attempts at a task.
    """

    sink_id: str
    partition: int
    epoch: int
    run: str
    attempt: str
    nameless: bool = False

    @property
    def producer_id(self) -> str:
        return f"{self.sink_id}.{self.partition}"


class Planned(msgspec.Struct, array_like=True, frozen=True):
    """One request: its stream, and the digests of its rows end to end."""

    stream: str
    digests: bytes


class Entry(msgspec.Struct, frozen=True):
    """Entry `number` of the plan for a batch; after the `last` one there is no more."""

    epoch: int
    number: int
    run: str
    attempt: str
    last: bool
    requests: list[Planned]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[Entry])


class Journal:
    """The decisions made so far about one part."""

    # How far this worker process has trimmed each journal, in bytes.
    _trimmed: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, client: Client, bucket: str, part: Part) -> None:
        self._client = client
        self._part = part
        name = f"{bucket}/{part.producer_id}"
        self._stream = parse_name(name)
        self._batch_path = f"{self._stream.bucketed_path()}/append-batch"
        self._known: dict[int, Entry] = {}
        self._read_to = _START

    def known(self, number: int) -> Entry | None:
        """An entry that another attempt has decided, if it was read."""
        return self._known.get(number)

    def decide(self, entry: Entry) -> Entry:
        """Make `entry` the next of the plan, or learn which one is. Raises `Fenced`,
        `StreamdError`."""
        answer = self._propose(entry)
        if answer.status == 200:
            if entry.number == 0:
                self._trim(answer.headers[STREAM_FIRST_OFFSET])
            return entry
        self.read()
        return self._known[entry.number]

    def _propose(self, entry: Entry) -> Answer:
        payload = _ENCODER.encode(entry)
        headers: dict[str, str] = {
            CONTENT_TYPE: _JSON,
            PRODUCER_ID: "plan",
            PRODUCER_EPOCH: str(entry.epoch),
            PRODUCER_SEQ: str(entry.number),
        }
        frame = len(payload).to_bytes(4, "big") + payload
        for is_first_try in (True, False):
            try:
                return self._client.request("POST", self._batch_path, headers=headers, body=frame)
            except ProducerFenced as fenced:
                raise Fenced(
                    f"batch {entry.epoch} of sink {self._part.sink_id} is over, batch "
                    f"{fenced.epoch} has begun: this task belongs to the ended batch"
                ) from fenced
            except NotFound:
                if entry.number or not is_first_try:
                    raise
                self._create()
        raise AssertionError

    def _create(self) -> None:
        headers: dict[str, str] = {CONTENT_TYPE: _JSON}
        if self._part.nameless:
            headers[STREAM_TTL] = str(NAMELESS_TTL_S)
        self._client.request("PUT", self._stream.path, headers=headers)

    def read(self) -> None:
        """Learn the entries that have arrived for this batch since the last call. Raises
        `StreamdError`."""
        try:
            self._read_to, entries = read_entries(self._client, self._stream.path, self._read_to)
        except StreamNotFound:
            entries = []
        for entry in entries:
            if entry.epoch == self._part.epoch:
                self._known[entry.number] = entry

    def _trim(self, offset: str) -> None:
        """From time to time, trim the plans of finished batches; `offset` is where this batch
        begins."""
        at = int(offset.partition("_")[2])
        trimmed_to = self._trimmed.get(self._stream.path)
        if trimmed_to is not None and 0 <= at - trimmed_to <= MOST_STALE_BYTES:
            return
        if at:
            path = f"{self._stream.bucketed_path()}/snapshot/{offset}"
            # It makes no difference whether this attempt trims it, or another one, or a later one.
            with suppress(Refused):
                self._client.request("PUT", path, headers={CONTENT_TYPE: _JSON}, body=b"{}")
        if len(self._trimmed) == _REMEMBERED:
            self._trimmed.clear()
        self._trimmed[self._stream.path] = at


def read_entries(client: Client, path: str, offset: str = _START) -> tuple[str, list[Entry]]:
    """The entries of a journal from an offset on, or from its present beginning; and its end.

    Raises `StreamdError`.
    """
    entries: list[Entry] = []
    while True:
        try:
            answer = client.request("GET", path, params={"offset": offset})
        except OffsetGone as gone:
            if gone.earliest_offset is None:
                raise
            offset = gone.earliest_offset
            continue
        entries += _DECODER.decode(answer.body)
        offset = answer.headers[STREAM_NEXT_OFFSET]
        if answer.headers.get(STREAM_UP_TO_DATE, "").lower() == "true":
            return offset, entries
