"""One change to a value of lists, dictionaries and leaves, as MessagePack has it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

Path = tuple[Any, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Of everything in a value, the indexes and keys that lead to it."""
    yield path
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from places(each, (*path, number))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*path, key))


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def with_changed(value: Any, path: Path, found: Any) -> Any:
    """A copy with another value at a place."""
    if not path:
        return found
    key, *rest = path
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[key] = with_changed(copied[key], tuple(rest), found)
    return copied


def changed(random: Random, value: Any) -> tuple[str, Any]:
    """Another value, mostly of the same type, and what was done."""
    for _ in range(8):
        how, found = _changed(random, value)
        if found != value or type(found) is not type(value):
            break
    return how, found


def _changed(random: Random, value: Any) -> tuple[str, Any]:
    match value:
        case bool():
            return "turned", not value
        case int():
            how = random.choice(("one more", "one less", "zero", "a bit", "large", "huge"))
            more = {"one more": value + 1, "one less": value - 1, "zero": 0}
            more |= {"large": 2**40 + 3, "huge": 2**63 + 3}
            found = more.get(how, value ^ 1 << random.randrange(max(1, value.bit_length())))
            return how, abs(found)
        case bytes():
            return _of_bytes(random, value)
        case str():
            how, text = _of_bytes(random, value.encode(errors="replace"))
            return how, text.decode(errors="replace")
        case None:
            return "set", random.choice((1, 60_000, "x", b"x"))
        case list() if value:
            return _of_list(random, value)
        case dict() if value:
            key = random.choice(sorted(value, key=str))
            return "without one", {each: value[each] for each in value if each != key}
        case list():
            return "with one", [random.choice((1, "x", b"x"))]
    return "set", {1: []}


def _of_bytes(random: Random, value: bytes) -> tuple[str, bytes]:
    how = random.choice(("a bit", "shorter", "longer", "empty")) if value else "longer"
    if how == "a bit":
        place = random.randrange(len(value))
        flipped = value[place] ^ 1 << random.randrange(7)
        return how, value[:place] + bytes([flipped]) + value[place + 1 :]
    return how, {"shorter": value[:-1], "longer": value + b"x", "empty": b""}[how]


def _of_list(random: Random, value: list[Any]) -> tuple[str, list[Any]]:
    how = random.choice(("without one", "with one twice", "two swapped"))
    place = random.randrange(len(value))
    if how == "without one":
        return how, value[:place] + value[place + 1 :]
    if how == "with one twice":
        return how, [*value[: place + 1], *value[place:]]
    other = random.randrange(len(value))
    swapped = list(value)
    swapped[place], swapped[other] = value[other], value[place]
    return how, swapped
