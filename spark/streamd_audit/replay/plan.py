"""From where to where the log of a group is replayed."""

from __future__ import annotations

from dataclasses import dataclass

from streamd_audit.commands import Limits


@dataclass(frozen=True)
class Plan:
    """The plan of one group: the state with which the replay begins (None: before entry 1) and the
    one with which it is compared, by their indexes; what the first one's header and the log say.

    `bases` are what recoveries added to ids in ETags, each from an index on. `members` are the
    nodes that the entries with these indexes, rising, leave in the cluster. `limits` are those of
    the first state, by kind and name, and `counts` is whether it counts what buckets keep.
    """

    before: int | None = None
    after: int | None = None
    first_number: int = 1
    bases: tuple[tuple[int, int], ...] = ()
    members: tuple[tuple[int, frozenset[int]], ...] = ()
    counts: bool = False
    limits: tuple[tuple[str, str, Limits], ...] = ()
