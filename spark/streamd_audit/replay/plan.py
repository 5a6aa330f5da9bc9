"""From where to where the log of a group is replayed."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamd_audit.commands import Limits
from streamd_audit.rows import Header

# A state stands after all commands of its entry. First comes what it lacks of the state before it,
# then what it has that the other lacked.
FIRST_STATE = 2**30


@dataclass(frozen=True)
class Plan:
    """The plan of one group: the state with which the replay begins (None: before entry 1) and
    those with which it is compared, by their indexes, in order; what the log says of the whole.

    `header` is that of the first state. `bases` are what recoveries added to ids in ETags, each
    from an index on. `configurations` are the payloads of the entries with these indexes, rising.
    `limits` are those of the first state, by kind and name. `versions` are those of the patterns,
    by the headers of the states to compare with.
    """

    before: int | None = None
    states: tuple[int, ...] = ()
    header: Header = field(default_factory=Header)
    bases: tuple[tuple[int, int], ...] = ()
    configurations: tuple[tuple[int, bytes], ...] = ()
    limits: tuple[tuple[str, str, Limits], ...] = ()
    versions: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Where each of the states stands in the log: (index, position)."""
        return tuple(
            (index, state_position(number, is_there=True))
            for number, index in enumerate(self.states)
        )


def state_position(number: int, *, is_there: bool) -> int:
    """The position in its entry of the `number`-th state to compare with, counted from 0: of its
    rows that the state before it lacks, or of those that it lacks."""
    return FIRST_STATE + 2 * number + is_there
