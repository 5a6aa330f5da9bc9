"""What JSON cannot hold is refused, where an encoder would make something else of it."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

_AS_TEXT = (bytes, bytearray, memoryview)
_AS_ARRAY = (set, frozenset)


def check_messages(values: Iterable[Any]) -> None:
    """Check what is to be appended. Raises `TypeError`, `ValueError`, with the place.

    NaN would become null, bytes would become text in base64, and a set an array: the reader would
    get another value. Structs and dataclasses are left to their types, which turn it back.

    >>> check_messages([{"price": float("nan")}])
    Traceback (most recent call last):
        ...
    ValueError: message 0["price"] is nan, which JSON does not have
    """
    for number, value in enumerate(values):
        try:
            _check(value, f"message {number}")
        except RecursionError:
            raise ValueError(f"message {number} is nested too deeply, or holds itself") from None


def _check(value: Any, place: str) -> None:
    if isinstance(value, str):
        return
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{place} is {value}, which JSON does not have")
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, (float, *_AS_TEXT)):
                raise TypeError(f"{place} has the key {key!r}: keys of JSON are text")
            _check(inner, f'{place}["{key}"]')
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check(inner, f"{place}[{index}]")
    elif isinstance(value, _AS_TEXT):
        raise TypeError(f"{place} is {type(value).__name__}: decode it, or encode it as base64")
    elif isinstance(value, _AS_ARRAY):
        raise TypeError(f"{place} is a {type(value).__name__}: make a list of it")
