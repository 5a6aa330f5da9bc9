"""Makes one change to a store, at any level: each is named, and comes again from its seed.

A name is ``level/object/what``; what follows a colon is for people. The levels are the bytes of an
object, an element of a decoded one with every checksum made good, whole objects, sets of objects
set back together, odd objects, which a directory can have, and a history forged everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from streamd_audit.watermark import Watermark
from tests.spark.tamper import of_elements, of_history, of_objects, of_odd, of_trees
from tests.spark.tamper.changes import LEVELS, Choosing, Odd, Site, Unfit
from tests.spark.tamper.stores import Grown, Objects

# Where the changes are.
_MODULES = of_elements, of_history, of_objects, of_odd, of_trees
# There are far more ways to change an element than a set of objects.
_SHARES = {"bytes": 6, "element": 24, "object": 8, "set": 2, "odd": 2, "history": 2}


@dataclass(frozen=True)
class Mutation:
    """A changed store. `mark` is a watermark that an earlier audit has left; `odd` are further
    entries of a directory."""

    seed: int
    name: str
    objects: Objects
    mark: Watermark | None = None
    odd: Odd = field(default_factory=dict)

    @property
    def level(self) -> str:
        return self.name.partition("/")[0]

    @property
    def pattern(self) -> str:
        """What the list of unseen mutations is about."""
        return self.name.partition(":")[0]


def mutation(
    seed: int, grown: Grown, foreign: Grown, of: Sequence[str] = tuple(_SHARES)
) -> Mutation:
    """The mutation of a seed, of any of these levels."""
    random = Choosing(seed)
    while True:
        chosen = random.choices(of, [_SHARES[each] for each in of])[0]
        make = LEVELS[chosen][random.choice(sorted(LEVELS[chosen]))]
        site = Site(random, grown, foreign)
        try:
            name = make(site)
        except Unfit:
            continue
        return Mutation(seed, f"{chosen}/{name}", site.objects, site.mark, site.odd)
