"""An object store that fails when it is told to."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from streamd.cold.errors import ColdUnavailable
from streamd.cold.fs import FsStore
from streamd.cold.objects import MAX_PAGE, ObjectInfo


class Away(list[Exception]):
    """Failures without end: the store does not answer."""

    def __bool__(self) -> bool:
        return True

    def pop(self, *_: object) -> Exception:  # type: ignore[override]
        return ColdUnavailable("away")


class FlakyStore(FsStore):
    """A directory whose next calls fail, or whose next reads are damaged, as told."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failures: list[Exception] = []
        self.damaged_reads = 0
        self.calls = 0
        # The store's own clock, in ms since the epoch, where it is not that of the disk.
        self.clock_ms: Callable[[], int] | None = None

    def put(self, name: str, content: bytes) -> None:
        self._maybe_fail()
        super().put(name, content)
        if self.clock_ms is not None:
            at_ns = self.clock_ms() * 1_000_000
            os.utime(self._root / name, ns=(at_ns, at_ns))

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
        return super().page(prefix, after=after, limit=limit)

    def _maybe_fail(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
