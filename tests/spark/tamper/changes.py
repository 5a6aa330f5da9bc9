"""The ways to change a store, by level, and what they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from streamd_audit.watermark import Watermark
from tests.spark.forging import Folder
from tests.spark.tamper.stores import Grown, Objects

# Makers of entries of a directory that are no plain files, by their names in it.
Odd = dict[bytes, Callable[[bytes], None]]


class Choosing(Random):
    """Randomness that finds a change unfit for a store which lacks what it would choose from."""

    def choice(self, seq: Any) -> Any:
        if not len(seq):
            raise Unfit
        return super().choice(seq)


@dataclass
class Site:
    """A store to change, in a copy: `folder` has its objects, `grown` what it had earlier, and
    `foreign` those of another cluster. `odd` and `mark` are as in `Mutation`."""

    random: Random
    grown: Grown
    foreign: Grown
    folder: Folder = field(init=False)
    odd: Odd = field(default_factory=dict)
    mark: Watermark | None = None

    def __post_init__(self) -> None:
        self.folder = Folder(self.grown.objects, self.grown.cluster_id, self.grown.group_id)

    @property
    def objects(self) -> Objects:
        return self.folder.objects

    def one_of(self, *kinds: str) -> str:
        """The full name of an object; each kind is as likely."""
        return self.random.choice(self.folder.names(self.random.choice(kinds)))

    def age_of(self, manifest: str) -> str:
        """How a state is used: ``newest``, ``oldest`` if the replay begins with it, ``older``."""
        there = self.folder.manifests()
        if manifest == there[-1]:
            return "newest"
        return "oldest" if manifest == there[0] and self.grown.is_cut else "older"


# What can be done to a site; it returns the mutation's name without the level.
Change = Callable[[Site], str]


class Unfit(Exception):
    """This store has nothing that a change could be made to."""


KINDS = "log", "packs", "pieces", "snapshots", "ends", "heads"
LEVELS: dict[str, dict[str, Change]] = {}


def change(level: str) -> Callable[[Change], Change]:
    """Register a change."""

    def register(make: Change) -> Change:
        LEVELS.setdefault(level, {})[make.__name__] = make
        return make

    return register
