"""A store of objects in memory, for audits that read it in this process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from streamd_audit.directories import PAGE, Listed, Names, Odd, Page
from streamd_audit.errors import TOO_SHORT, Damaged, ObjectMissing


class MemoryStore:
    """A store of objects in memory."""

    place = "memory"

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._objects = objects
        self._names = sorted(objects)

    def list(self, prefix: str = "", after: str = "") -> Iterator[Page]:
        begin = bisect_left(self._names, max(prefix, after))
        page = []
        for name in self._names[begin:]:
            if not name.startswith(prefix):
                break
            if name > after:
                page.append(Listed(name, len(self._objects[name])))
        for at in range(0, len(page), PAGE):
            yield page[at : at + PAGE]

    def odd(self, prefix: str) -> Iterator[Odd]:
        return iter(())

    def folders(self) -> Names:
        return sorted({name.partition("/")[0] for name in self._names if "/" in name})

    def size(self, name: str) -> int:
        return len(self.read(name))

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        content = self._objects.get(name)
        if content is None:
            raise ObjectMissing(name)
        end = len(content) if length is None else start + length
        if len(content) < end:
            raise Damaged(TOO_SHORT, f"{name} ends at byte {len(content)}")
        return content if (start, end) == (0, len(content)) else content[start:end]

    def close(self) -> None:
        pass
