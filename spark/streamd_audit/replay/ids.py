"""The ids of streams, uploads and blobs, as far as one scope can tell them."""

from __future__ import annotations

from collections.abc import Callable

Place = tuple[int, int]
"""A command's index in the log, and its position in the entry."""


class Numbered:
    """Something with an id: a stream, an upload, a blob.

    `born` is the command that made it; None if it existed before the log. `id` is None until a
    command names it; `is_guessed` means that one named it and nothing contradicted. Ids rise, so
    it is above `floor`, the highest one named when the thing was made.
    """

    __slots__ = ("born", "floor", "id", "is_guessed")

    def __init__(self, born: Place | None, number: int | None) -> None:
        self.born = born
        self.id = number
        self.is_guessed = False
        self.floor = 0


class Known:
    """What a scope cannot find out by itself.

    `numbers` are the ids that commands give to what they make, if they make something; a scope
    whose commands are not among them guesses. `without_bucket` are commands that found no bucket.
    `bases` are what recoveries added to the ids in ETags: (index, base), rising. `first_number` is
    the first id that the log gives.
    """

    def __init__(
        self,
        numbers: dict[Place, int] | None = None,
        without_bucket: set[Place] | None = None,
        bases: tuple[tuple[int, int], ...] = (),
        first_number: int = 1,
    ) -> None:
        self.numbers = {} if numbers is None else numbers
        self.without_bucket = set() if without_bucket is None else without_bucket
        self.bases = bases
        self.first_number = first_number

    def base(self, index: int) -> int:
        found = 0
        for since, base in self.bases:
            if since > index:
                break
            found = base
        return found


class Ids:
    """Gives things their ids, and compares them with those that commands name.

    `made` is called for everything that takes an id.
    """

    def __init__(self, known: Known, made: Callable[[Numbered], None]) -> None:
        self._numbers = known.numbers
        self._made = made
        self._guessed: set[int] = set()
        self._highest = known.first_number - 1

    def give(self, thing: Numbered) -> None:
        assert thing.born is not None
        thing.id = self._numbers.get(thing.born)
        thing.floor = self._highest
        self._made(thing)

    def match(self, thing: Numbered, claimed: int) -> bool:
        """Whether a thing has the id that a command names; a thing without one takes it."""
        if thing.id is not None:
            return thing.id == claimed
        if claimed <= thing.floor or claimed in self._guessed:
            return False
        self.believe(thing, claimed)
        return True

    def believe(self, thing: Numbered, claimed: int) -> None:
        thing.id = claimed
        thing.is_guessed = True
        self._guessed.add(claimed)
        self._highest = max(self._highest, claimed)
