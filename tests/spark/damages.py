"""Ways to damage a bucket, each with the finding that an audit must report, once and at its place.

The ways themselves are in `damages_packs`, `damages_log`, `damages_states` and `damages_live`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.spark.buckets import Clean
from tests.spark.forging import Folder
from tests.spark.regrouping import regrouped


@dataclass(frozen=True)
class Expected:
    """A finding that must be reported. A field of None may be anything; `record` is that of
    `offset`."""

    kind: str
    object: str | None = None
    stream: str | None = None
    record: int | None = None
    index: int | None = None

    def place(self) -> dict[str, Any]:
        """The fields that locate the fault."""
        named = {
            "object": self.object,
            "stream": self.stream,
            "record": self.record,
            "index": self.index,
        }
        return {name: value for name, value in named.items() if value is not None}


class Scene:
    """A clean group of a cluster for a way to damage, and another cluster's objects."""

    def __init__(self, folder: Folder, foreign: Folder) -> None:
        self.folder = folder
        self.foreign = foreign

    @classmethod
    def of(cls, clean: Clean, foreign: Clean, group_id: int = 0) -> Scene:
        """A copy of a clean bucket's objects, in memory, as those of a group."""
        folders = [Folder(one.objects, one.cluster_id) for one in (clean, foreign)]
        if group_id:
            folders = [regrouped(folder, group_id) for folder in folders]
        return cls(*folders)


# Of a `Scene`, or of the rows of a node's own state.
Apply = Callable[[Any], "Expected | list[Expected]"]


@dataclass(frozen=True)
class Damage:
    """`title` describes the damage. With `is_whole` every object by itself matches its checksums
    and its name: only a comparison reveals the damage."""

    name: str
    title: str
    apply: Apply
    is_whole: bool

    def on(self, scene: Any) -> list[Expected]:
        """Damage a scene. Returns what must be found."""
        found = self.apply(scene)
        return found if isinstance(found, list) else [found]


@dataclass
class Catalogue:
    """Damages of one kind of object."""

    title: str
    damages: list[Damage] = field(default_factory=list)

    def add(self, *, is_whole: bool = False) -> Callable[[Apply], Apply]:
        """Register a way to damage. Its docstring is its title."""

        def register(apply: Apply) -> Apply:
            title = (apply.__doc__ or "").strip().rstrip(".")
            assert title, apply
            self.damages.append(Damage(apply.__name__, title, apply, is_whole))
            return apply

        return register
