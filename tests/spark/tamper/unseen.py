"""The list in docs/audit.md of what no audit can see without an anchor."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.spark.audit_page import PAGE

_BEGIN = "<!-- unseen: read by tests/spark/tamper/unseen.py -->"
_END = "<!-- end of unseen -->"


class Unseen(NamedTuple):
    """A line of the list: the names of mutations that it is about, with ``*`` for anything; and
    whether a head that was kept outside shows them."""

    title: str
    patterns: tuple[str, ...]
    shown_by_head: bool

    def matches(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


def unseen() -> list[Unseen]:
    page = PAGE.read_text()
    table = page.partition(_BEGIN)[2].partition(_END)[0]
    return list(_lines(table))


def _lines(table: str) -> Iterator[Unseen]:
    for line in table.strip().splitlines()[2:]:
        title, patterns, _, kept = (cell.strip() for cell in line.strip("|").split("|"))
        names = tuple(each.strip(" `") for each in patterns.split(","))
        yield Unseen(title, names, kept == "found")
