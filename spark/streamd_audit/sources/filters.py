"""What a query's filters leave of an object, known before any of it is fetched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)


@dataclass(frozen=True)
class Bounds:
    """The values that one column may have: at least `low`, at most `high`, and one of `values`;
    each is None if no filter sets it."""

    low: Any = None
    high: Any = None
    values: frozenset[Any] | None = None

    def meets(self, first: Any, last: Any) -> bool:
        """Whether any value from `first` to `last` is allowed."""
        if self.low is not None and last < self.low:
            return False
        if self.high is not None and first > self.high:
            return False
        return self.values is None or any(first <= value <= last for value in self.values)

    def _and(self, other: Bounds) -> Bounds:
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        values = other.values if self.values is None else self.values
        if self.values is not None and other.values is not None:
            values = self.values & other.values
        return Bounds(max(lows, default=None), min(highs, default=None), values)


class Filters:
    """The filters of a query, all of which hold, as bounds of columns.

    What no bound can express is left to Spark, which applies all filters again: bounds only save
    work, and may let through more than the filters do, never less.
    """

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self._bounds: dict[str, Bounds] = {}
        for one in filters:
            found = _bounds(one)
            if found is not None:
                column, bounds = found
                self._bounds[column] = self._bounds.get(column, Bounds())._and(bounds)

    def __contains__(self, column: str) -> bool:
        return column in self._bounds

    def admits(self, column: str, value: Any) -> bool:
        """Whether rows with this value of a column can matter. No filter admits None."""
        bounds = self._bounds.get(column)
        return bounds is None or (value is not None and bounds.meets(value, value))

    def meets(self, column: str, first: Any, last: Any) -> bool:
        """Whether rows can matter whose column lies between two values, both included."""
        bounds = self._bounds.get(column)
        return bounds is None or bounds.meets(first, last)


def _bounds(one: Filter) -> tuple[str, Bounds] | None:
    match one:
        case EqualTo(attribute=(column,), value=value) if value is not None:
            return column, Bounds(value, value, frozenset((value,)))
        case EqualNullSafe(attribute=(column,), value=value) if value is not None:
            return column, Bounds(value, value, frozenset((value,)))
        case In(attribute=(column,), value=values):
            known = frozenset(value for value in values if value is not None)
            return column, Bounds(min(known, default=None), max(known, default=None), known)
        case GreaterThan(attribute=(column,), value=value):
            return column, Bounds(low=value)
        case GreaterThanOrEqual(attribute=(column,), value=value):
            return column, Bounds(low=value)
        case LessThan(attribute=(column,), value=value):
            return column, Bounds(high=value)
        case LessThanOrEqual(attribute=(column,), value=value):
            return column, Bounds(high=value)
    return None
