"""Which packs and slices must be there: what states refer to, and the log after them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamd_audit.context import Context
from streamd_audit.frames import shaped
from streamd_audit.replay import scan
from streamd_audit.replay.whole import account_of, scanned
from streamd_audit.states import State

# Of a pack, `what` is 0, and `state` the newest that refers to it, or null where only the log does.
REF_DDL = (
    "object string, what int, `group` int, state long, is_newest boolean, size long, "
    "stream_id long, start_record long, start_byte long, end_record long, end_byte long, "
    "offset long, length long, crc long, digest binary, name string, is_judged boolean"
)


def references(rows: DataFrame, judged: Mapping[int, int]) -> DataFrame:
    """A row for each pack that a slice of some state is in, and one for each slice.

    `judged` are the indexes of states that were judged before, by group: packs of which they have
    every slice need not be read again (`is_judged`).
    """
    was_judged = F.lit(False)
    for group, index in judged.items():
        was_judged = was_judged | ((F.col("group") == group) & (F.col("state") == index))
    place = ["group", "term", "number"]
    packs = (
        rows.where("said = 'pack'")
        .groupBy(*place, "name", "size")
        .agg(F.max("state").alias("state"))
        .withColumnRenamed("name", "object")
    )
    names = rows.where("said = 'stream'").select("group", "stream_id", "name")
    slices = (
        rows.where("said = 'slice'")
        .groupBy(
            *place, "stream_id", "start_record", "start_byte", "end_record", "end_byte", "offset",
            "length", "crc", "digest",
        )
        .agg(
            F.max("state").alias("state"),
            F.max("is_newest").alias("is_newest"),
            F.max(was_judged).alias("is_judged"),
        )
        .join(names, ["group", "stream_id"], "left")
    )  # fmt: skip
    alive = slices.groupBy(*place).agg(
        F.max("state").alias("state"), F.min("is_judged").alias("is_judged")
    )
    whole = packs.drop("state").join(alive, place).withColumn("what", F.lit(0))
    of_pack = whole.select(*place, "object", "is_judged")
    joined = slices.drop("is_judged").join(of_pack, place, "left").withColumn("what", F.lit(1))
    return shaped(joined, REF_DDL).unionByName(shaped(whole, REF_DDL))


def pending(context: Context, newest: Mapping[int, State]) -> DataFrame | None:
    """Packs that no state refers to yet: entries after the newest one do."""
    account_of(context)
    if scan.PACK not in context.notes["log_rows"]:
        return None
    after = F.lit(False)
    groups = F.lit(True)
    for group, state in newest.items():
        after = after | ((F.col("group") == group) & (F.col("index") > state.index))
        groups = groups & (F.col("group") != group)
    found = scanned(context).where((F.col("what") == scan.PACK) & (after | groups))
    found = found.select(
        "group", F.col("one").alias("pack_term"), F.col("two").alias("number"), "object",
        F.col("three").alias("size"),
    )  # fmt: skip
    forgotten = found.where("object is null").select("group", "pack_term", "number").distinct()
    made = (
        found.where("object is not null")
        .dropDuplicates(["object"])
        .join(forgotten, ["group", "pack_term", "number"], "left_anti")
        .withColumn("what", F.lit(0))
        .withColumn("is_judged", F.lit(False))
    )
    return shaped(made, REF_DDL)
