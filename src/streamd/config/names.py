"""The names of keys and of their variables, and what a wrong one may have meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

PREFIX = "STREAMD_"
_REFERENCE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
# Variables of the node's start, the client's commands, the build and the tests, which are not
# configuration keys.
OTHERS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "ROOT_TOKEN",
        "URL",
        "TOKEN",
        "TOKEN_FILE",
        "CACERT",
        "CERT",
        "PURE_PYTHON",
        "CACHE",
        "REQUIRE_MINIO",
    )
)
_OF_TESTS = f"{PREFIX}TEST_"
# What Kubernetes sets in a container for each service of its namespace, here for those that are
# named streamd or streamd-SOMETHING.
_INJECTED = re.compile(
    r"STREAMD_([A-Z0-9_]+?_)??"
    r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_PORT = re.compile(r"(tcp|udp|sctp)://.*")
_MOST_SUGGESTED = 3


def is_injected(name: str, text: str) -> bool:
    """Whether Kubernetes made a variable, which begins like ours."""
    match = _INJECTED.fullmatch(name)
    if match is None:
        return False
    return match[2] != "PORT" or _PORT.fullmatch(text) is not None


def injected_variables(environment: Mapping[str, str]) -> list[str]:
    """The variables that Kubernetes made for services with names like ours."""
    return sorted(name for name, text in environment.items() if is_injected(name, text))


def unknown_variable(
    environment: Mapping[str, str], values: Mapping[str, Any], config: type[msgspec.Struct]
) -> str | None:
    """The fault of a variable that nothing uses, and that would be ignored: most have a slip.

    Variables that `values` name as ``$NAME`` may be called as anyone likes.
    """
    known = variables_of(config)
    used = {*known, *OTHERS, *_references(values)}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name.startswith(_OF_TESTS):
            continue
        if name not in used and name.upper() not in known and not is_injected(name, text):
            return f"unknown variable {name}{suggestion(name, [*known, *OTHERS], '_')}"
    return None


def fields_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields and their types."""
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def keys_of(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """All keys below a struct, with dots between; those of lists of tables are left out."""
    for name, kind in fields_of(struct).items():
        yield prefix + name
        for inner in _parts(kind):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from keys_of(inner, f"{prefix}{name}.")


def variables_of(config: type[msgspec.Struct]) -> list[str]:
    """The variables of all keys."""
    keys = (key for key in keys_of(config) if "." in key)
    return [PREFIX + key.upper().replace(".", "_") for key in keys]


def suggestion(wrong: str, known: Iterable[str], separator: str) -> str:
    """What a wrong name may have meant, to be put after a message; empty if nothing is near.

    Near is a name whose section alone is missing or another, and a name with few other letters.
    """
    known = list(known)
    last = wrong.removeprefix(PREFIX).rpartition(".")[2]
    before = {name: name.removesuffix(separator + last) for name in known}
    same = {name: short.count(separator) for name, short in before.items() if short != name}
    near = [name for name, depth in same.items() if depth == min(same.values())]
    near = near or get_close_matches(wrong, known, 1, 0.75)
    return f"; did you mean {_listed(near[:_MOST_SUGGESTED])}?" if near else ""


def readable(message: str, config: type[msgspec.Struct]) -> str:
    """A message of msgspec with the key in front, and with what would be right."""
    text, _, path = message.partition(" - at `$")
    key = path.rstrip("`").lstrip(".")
    if unknown := re.search(r"unknown field `([^`]*)`", text):
        wrong = f"{key + '.' if key else ''}{unknown[1]}"
        return f"unknown key {wrong}{suggestion(wrong, keys_of(config), '.')}"
    text = with_values(text, _type_at(config, key))
    return f"{key}: {text}" if key else text


def with_values(text: str, kind: Any) -> str:
    """A message about a value, with the valid ones if they can be listed."""
    values = [str(value) for value in _literals(kind)]
    return f"{text}; use {_listed(values)}" if values else text


def _references(value: Any) -> Iterator[str]:
    """The variables that values name as ``$NAME``."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, str) and (match := _REFERENCE.fullmatch(value)):
        yield match[1]


def _listed(names: list[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} or {last}" if before else last


def _parts(kind: Any) -> Iterator[Any]:
    """The types that a type is made of, but not the elements of lists."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _parts(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for part in get_args(kind):
            yield from _parts(part)
    else:
        yield kind


def _literals(kind: Any) -> Iterator[Any]:
    for part in _parts(kind):
        if get_origin(part) is Literal:
            yield from get_args(part)


def _type_at(struct: type[msgspec.Struct], key: str) -> Any:
    """The type of the key's value; None if msgspec names it in another way."""
    kind: Any = struct
    for name in filter(None, re.split(r"[.\[]", key)):
        if name.endswith("]"):
            kind = next((get_args(part)[0] for part in _parts(kind) if get_args(part)), None)
            continue
        structs = (one for one in _parts(kind) if isinstance(one, type))
        found = next((one for one in structs if issubclass(one, msgspec.Struct)), None)
        kind = None if found is None else fields_of(found).get(name)
    return kind
