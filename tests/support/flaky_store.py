"""An object store that fails on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from streamd.objectstore.errors import ColdUnavailable
from streamd.objectstore.fs import FsStore
from streamd.objectstore.objects import MAX_PAGE, ObjectInfo


class Away(list[Exception]):
    """Failures without end: the store does not answer."""

    def __bool__(self) -> bool:
        return True

    def pop(self, *_: object) -> Exception:
        return ColdUnavailable("away")


class FlakyStore(FsStore):
    """A directory whose next calls fail, or whose next reads are damaged, on request."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failures: list[Exception] = []
        self.damaged_reads = 0
        self.calls = 0
        # The store's own clock, in ms since the epoch, where it is not that of the disk.
        self.clock_ms: Callable[[], int] | None = None
        # When objects were written by that clock. It is noted before they exist: a listing must
        # never see the disk's time.
        self._written_ms: dict[str, int] = {}

    def put(self, name: str, content: bytes) -> None:
        self._maybe_fail()
        if self.clock_ms is not None:
            self._written_ms[name] = self.clock_ms()
        super().put(name, content)

    def stat(self, name: str) -> ObjectInfo:
        return self._by_own_clock(super().stat(name))

    def get(self, name: str, offset: int, length: int) -> bytes:
        self._maybe_fail()
        content = bytearray(super().get(name, offset, length))
        if self.damaged_reads:
            self.damaged_reads -= 1
            content[0] ^= 1
        return bytes(content)

    def delete(self, names: Sequence[str]) -> None:
        self._maybe_fail()
        assert len(names) <= MAX_PAGE
        super().delete(names)

    def page(self, prefix: str, *, after: str = "", limit: int = MAX_PAGE) -> list[ObjectInfo]:
        self._maybe_fail()
        return [self._by_own_clock(info) for info in super().page(prefix, after=after, limit=limit)]

    def _by_own_clock(self, info: ObjectInfo) -> ObjectInfo:
        written_ms = self._written_ms.get(info.name)
        return info if written_ms is None else info._replace(modified_ms=written_ms)

    def _maybe_fail(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
