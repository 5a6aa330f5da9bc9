"""An object store in memory that fails as a real one over a network does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from streamd.objectstore.errors import ColdUnavailable, ObjectCorrupt, ObjectMissing
from streamd.objectstore.objects import MAX_PAGE, ObjectInfo, check_name, check_put


class SimulatedObjects:
    """The objects of a bucket, which outlive every node; `ObjectsOf` is how a node sees them."""

    def __init__(self, random: Random, clock_ms: Callable[[], int] = lambda: 0) -> None:
        self.random = random
        self.clock_ms = clock_ms
        self.objects: dict[str, tuple[bytes, int]] = {}
        # Nothing is answered at all.
        self.is_away = False
        # The probability that a call fails: before it took effect, or after it.
        self.refusal_probability = 0.0
        self.lost_reply_probability = 0.0
        # The probability that a read has a flipped bit.
        self.flip_probability = 0.0
        self.counts: Counter[str] = Counter()

    @property
    def contents(self) -> dict[str, bytes]:
        """The objects' bytes by name."""
        return {name: content for name, (content, _) in self.objects.items()}

    def heal(self) -> None:
        self.is_away = False
        self.refusal_probability = self.lost_reply_probability = self.flip_probability = 0.0


class ObjectsOf:
    """An `ObjectStore` in simulated objects."""

    place = "the simulated bucket"

    def __init__(self, shared: SimulatedObjects) -> None:
        self._shared = shared

    def put(self, name: str, content: bytes) -> None:
        check_put(name, content)
        self._before("put")
        self._shared.objects[name] = (content, self._shared.clock_ms())
        self._after("put")

    def get(self, name: str, offset: int, length: int) -> bytes:
        self._before("get")
        content = bytearray(self._find(name)[0][offset : offset + length])
        if len(content) != length:
            raise ObjectCorrupt(f"{name} in {self.place} ends before {offset + length}")
        if content and self._happens(self._shared.flip_probability, "flipped bit"):
            content[self._shared.random.randrange(length)] ^= 1
        self._after("get")
        return bytes(content)

    def stat(self, name: str) -> ObjectInfo:
        self._before("stat")
        content, modified_ms = self._find(name)
        return ObjectInfo(name, len(content), modified_ms)

    def page(self, prefix: str, *, after: str = "", limit: int = MAX_PAGE) -> list[ObjectInfo]:
        self._before("page")
        objects = self._shared.objects
        names = sorted(name for name in objects if name.startswith(prefix) and name > after)
        return [ObjectInfo(name, len(objects[name][0]), objects[name][1]) for name in names[:limit]]

    def delete(self, names: Sequence[str]) -> None:
        self._before("delete")
        for name in names:
            self._shared.objects.pop(check_name(name), None)
        self._after("delete")

    def close(self) -> None: ...

    def _find(self, name: str) -> tuple[bytes, int]:
        try:
            return self._shared.objects[check_name(name)]
        except KeyError:
            raise ObjectMissing(f"{name} is not in {self.place}") from None

    def _before(self, call: str) -> None:
        self._shared.counts[call] += 1
        if self._shared.is_away or self._happens(self._shared.refusal_probability, "refusal"):
            raise ColdUnavailable(f"{self.place} does not answer")

    def _after(self, call: str) -> None:
        if self._happens(self._shared.lost_reply_probability, f"lost reply to {call}"):
            raise ColdUnavailable(f"{self.place} did, and its answer was lost")

    def _happens(self, probability: float, what: str) -> bool:
        if probability and self._shared.random.random() < probability:
            self._shared.counts[what] += 1
            return True
        return False
