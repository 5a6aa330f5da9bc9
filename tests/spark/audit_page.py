"""The tables of docs/audit.md, generated from the audit's kinds and the tests' damages.

``AUDIT_PAGE=write python -m pytest tests/spark/test_damages.py`` writes them into the page.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from streamd_audit.findings import KINDS, SEVERITIES
from tests.spark.damages import Catalogue
from tests.spark.damages_live import LIVE
from tests.spark.damages_log import LOG
from tests.spark.damages_odd_log import ODD_LOG
from tests.spark.damages_older_states import OLDER_STATES
from tests.spark.damages_packs import PACKS
from tests.spark.damages_states import STATES

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
CATALOGUES = (PACKS, LOG, ODD_LOG, STATES, OLDER_STATES, LIVE)


def damages_table(kinds_of: dict[str, list[str]]) -> str:
    """One line for each damage; `kinds_of` gives the kinds that must be reported for it, by its
    name."""
    lines = []
    for catalogue in CATALOGUES:
        lines += [*_header(catalogue), *(_row(one.title, kinds_of[one.name]) for one in
                                         catalogue.damages), ""]  # fmt: skip
    return "\n".join(lines)


def _header(catalogue: Catalogue) -> list[str]:
    return [f"| {catalogue.title}: the damage | is reported as |", "| --- | --- |"]


def _row(title: str, kinds: list[str]) -> str:
    counts = Counter(kinds)
    told = ", ".join(
        f"`{kind}`" + (f" ×{number}" if number > 1 else "") for kind, number in counts.items()
    )
    return f"| {' '.join(title.split())} | {told} |"


def kinds_table() -> str:
    """One line for each kind of finding, the worst first."""
    lines = [
        "| Kind | Severity | What is wrong | Usual cause |",
        "| --- | --- | --- | --- |",
    ]
    for severity in SEVERITIES:
        lines += [
            f"| `{name}` | {severity} | {kind.title} | {kind.cause} |"
            for name, kind in KINDS.items()
            if kind.severity == severity
        ]
    return "\n".join([*lines, ""])


def marked(page: str, name: str) -> str:
    """The text of the page between the marks of a table."""
    begin, end = _marks(name)
    return page.partition(begin)[2].partition(end)[0]


def with_table(page: str, name: str, table: str) -> str:
    begin, end = _marks(name)
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{table}{end}{rest.partition(end)[2]}"


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: made by tests/spark/audit_page.py -->", f"<!-- end of {name} -->"
