"""The streams that rows go to: their kinds, and the form of a request of rows for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from struct import Struct

from streamd.client import Client, NotFound, Refused, Stream, Unavailable
from streamd.client.names import BadName, parse_name
from streamd.spark.options import DEFAULT_BUCKET
from streamd.spark.sink.errors import BadRow, NotWritten
from streamd.spark.sink.settings import Settings
from streamd.streams.content import InvalidJson, is_json, json_value
from streamd.streams.keys import is_bucket_id

_MOST_MESSAGES = 10_000
_MOST_FRAMES = 512
_LENGTH = Struct(">I")
# How many streams a worker process remembers between tasks.
_REMEMBERED = 10_000


@dataclass(frozen=True)
class Target:
    """A stream, and how several records reach it in one request: as an array if it is JSON, as
    frames if it is in a bucket, otherwise not at all."""

    name: str
    path: str
    content_type: str
    is_json: bool
    is_framed: bool

    @property
    def most_rows(self) -> int:
        if self.is_json:
            return _MOST_MESSAGES
        return _MOST_FRAMES if self.is_framed else 1

    def records(self, raw: Sequence[bytes]) -> Sequence[bytes]:
        """The records of rows, if the stream can hold them. Raises `BadRow`."""
        if self.is_json:
            return [self._json(value) for value in raw]
        if b"" in raw:
            raise BadRow(f"a record for {self.name} is empty")
        return raw

    def _json(self, raw: bytes) -> bytes:
        try:
            return json_value(raw)
        except InvalidJson as error:
            shown = raw[:80].decode(errors="replace")
            raise BadRow(
                f"{self.name} is a stream of JSON, and a record for it is not: {error}: {shown}"
            ) from None

    def body(self, records: Sequence[bytes]) -> bytes:
        if self.is_json:
            return b"[%b]" % b",".join(records)
        if self.is_framed:
            return b"".join([_LENGTH.pack(len(record)) + record for record in records])
        return records[0]


class Targets:
    """Finds streams by the names in rows, and creates missing ones if allowed."""

    # Keys are the servers' URLs and the stream's name.
    _remembered: dict[tuple[tuple[str, ...], str], Target] = {}  # noqa: RUF012

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._parallel = settings.parallel
        self._urls = settings.urls
        self._create = settings.create
        self._found: dict[str, Target] = {}

    def __getitem__(self, name: str) -> Target:
        return self._found[name]

    def forget(self) -> None:
        """Forget everything: a stream may have been deleted and created again."""
        self._remembered.clear()

    def find(self, names: Iterable[str]) -> None:
        """Look up those streams that are not known yet. Raises `BadRow`, `NotWritten`,
        `StreamdError`."""
        unknown = []
        for name in names:
            if name not in self._found:
                target = self._remembered.get((self._urls, name))
                if target is None:
                    unknown.append(name)
                else:
                    self._found[name] = target
        if not unknown:
            return
        if len(self._remembered) + len(unknown) > _REMEMBERED:
            self._remembered.clear()
        with ThreadPoolExecutor(self._parallel) as pool:
            for target in pool.map(self._target, unknown):
                self._found[target.name] = self._remembered[self._urls, target.name] = target

    def _target(self, name: str) -> Target:
        try:
            stream = self._client.stream(name)
        except BadName as error:
            raise BadRow(f"a row names no stream: {error}") from None
        try:
            kind = stream.head().content_type
        except Unavailable:
            raise
        except NotFound as missing:
            if self._create is None:
                hint = "option create=true makes it"
                raise NotWritten(f"stream {name}: {missing}; {hint}") from None
            kind = _made(stream, self._create)
        except Refused as refusal:
            raise NotWritten(f"stream {name}: {refusal}") from None
        path = parse_name(name).path
        if is_json(kind):
            return Target(name, path, kind, is_json=True, is_framed=False)
        batch_path = _batch_path(name)
        return Target(name, batch_path or path, kind, is_json=False, is_framed=bool(batch_path))


def _made(stream: Stream, content_type: str) -> str:
    """Create a stream, or find that it was created meanwhile; its type."""
    try:
        return stream.create(content_type).content_type
    except Unavailable:
        raise
    except Refused as refusal:
        raise NotWritten(f"stream {stream.name} cannot be made: {refusal}") from None


def _batch_path(name: str) -> str:
    """Where frames can be posted; empty if the bucketed surface does not allow the name."""
    try:
        path = parse_name(name).bucketed_path()
    except BadName:
        return ""
    bucket = path[1:].partition("/")[0]
    is_known = bucket != DEFAULT_BUCKET and is_bucket_id(bucket.encode())
    return f"{path}/append-batch" if is_known else ""
