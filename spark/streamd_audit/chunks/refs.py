"""Which packs and slices must exist: what states refer to, and the log after them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamd_audit.context import Context
from streamd_audit.frames import shaped
from streamd_audit.packs import SliceRef
from streamd_audit.replay import scan
from streamd_audit.replay.stored import state_indexes
from streamd_audit.replay.whole import account_of, scanned

# A pack or a slice that a state refers to, or a pack that only the log made or forgot. `name` is
# the pack's object.
PACK, SLICE, MADE, FORGOTTEN = "pack", "slice", "made", "forgotten"
REF_DDL = (
    "said string, `group` int, term long, number long, since int, until int, "
    "name string, size long, stream_id long, start_record long, start_byte long, "
    "end_record long, end_byte long, offset long, length long, crc long, digest binary"
)
_OF_SLICE = SliceRef.__struct_fields__

Ref = dict[str, Any]


def references(context: Context, rows: DataFrame) -> DataFrame:
    """What states (`claims.CLAIMS_DDL`) say of packs and slices, and after the newest of them the
    log."""
    said = shaped(rows.where(F.col("said").isin(PACK, SLICE)), REF_DDL)
    if scan.PACK not in account_of(context).kinds:
        return said
    newest = {group: indexes[-1] for group, indexes in state_indexes(context).items()}
    after, has_none = F.lit(False), F.lit(True)
    for group, index in newest.items():
        after = after | ((F.col("group") == group) & (F.col("index") > index))
        has_none = has_none & (F.col("group") != group)
    later = scanned(context).where((F.col("what") == scan.PACK) & (after | has_none))
    later = later.select(
        "group", F.col("one").alias("term"), F.col("two").alias("number"),
        F.col("three").alias("size"), F.col("object").alias("name"),
        F.when(F.col("object").isNull(), FORGOTTEN).otherwise(MADE).alias("said"),
    )  # fmt: skip
    return said.unionByName(shaped(later, REF_DDL))


def of_log(
    group: int, term: int, number: int, size: int | None, name: str | None
) -> dict[str, Any]:
    """A pack that the log made, or forgot if it has no name."""
    return {
        "said": FORGOTTEN if name is None else MADE,
        "group": group, "term": term, "number": number, "size": size, "name": name,
    }  # fmt: skip


def packs_of(
    rows: Iterable[Ref], judged: Mapping[int, int]
) -> Iterator[tuple[Ref | None, list[Ref]]]:
    """The packs of one group, term and number, normally one, and the slices in them that states
    refer to, each once, with its `spans` of states; slices of unknown packs come with None.

    A pack's `state` is the number of the newest that refers to it, None if only the log does. Packs
    of which a state in `judged` has every slice need not be read again (`is_judged`).
    """
    packs: dict[tuple[str, int], Ref] = {}
    made: dict[str, Ref] = {}
    slices: dict[tuple[Any, ...], Ref] = {}
    is_forgotten = False
    for row in rows:
        if row["said"] == PACK:
            packs.setdefault((row["name"], row["size"]), row)
        elif row["said"] == SLICE:
            known = slices.setdefault(tuple(map(row.get, _OF_SLICE)), row)
            known.setdefault("spans", []).append((row["since"], row["until"]))
            known["state"] = max(known.get("state", 0), row["until"])
            before = judged.get(row["group"], -1)
            is_judged = row["since"] <= before <= row["until"]
            known["is_judged"] = known.get("is_judged", False) or is_judged
        elif row["said"] == MADE:
            made.setdefault(row["name"], row)
        else:
            is_forgotten = True
    alive = list(slices.values())
    if alive:
        state = max(row["state"] for row in alive)
        is_judged = all(row["is_judged"] for row in alive)
        for pack in packs.values():
            yield pack | {"state": state, "is_judged": is_judged}, alive
        if not packs:
            yield None, alive
    elif not is_forgotten:
        for pack in made.values():
            yield pack | {"state": None, "is_judged": False}, []
