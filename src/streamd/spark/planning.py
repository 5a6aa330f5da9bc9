"""Which records a task reads: large streams are cut, small ones put together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from streamd.spark.streams import Range, Streams

PARTITION_BYTES = 16 * 1024 * 1024
# One request each, even for an empty one.
_RANGES_OF_A_TASK = 1000


class Part(InputPartition):
    """Ranges that one task reads, one after the other, with the task's number in the query."""

    def __init__(self, number: int, ranges: list[Range]) -> None:
        self.number = number
        self.ranges = ranges


def plan(streams: Streams, ranges: Iterable[Range], partition_bytes: int) -> list[Part]:
    """Tasks of about `partition_bytes` each, in the order of the ranges."""
    pieces = (piece for whole in ranges for piece in cut(whole, partition_bytes))
    return packed(streams, pieces, partition_bytes)


def packed(streams: Streams, ranges: Iterable[Range], partition_bytes: int) -> list[Part]:
    """Group ranges, uncut, into tasks of about `partition_bytes` each."""
    parts: list[Part] = []
    gathered: list[Range] = []
    size = 0
    for each in ranges:
        full = size + each.size > partition_bytes or len(gathered) == _RANGES_OF_A_TASK
        if gathered and full:
            parts.append(Part(len(parts), gathered))
            gathered, size = [], 0
        gathered.append(streams.located(each))
        size += each.size
    if gathered:
        parts.append(Part(len(parts), gathered))
    return parts


def cut(whole: Range, most_bytes: int) -> list[Range]:
    """A range cut into ranges of about equally many records, of about `most_bytes` or less.

    Before records are read, nothing is known but that they are about the same size everywhere.
    """
    records = whole.end - whole.start
    if records <= 0:
        return []
    count = min(records, -(-whole.size // most_bytes) or 1)
    ends = [whole.start + records * number // count for number in range(count + 1)]
    size = whole.size // count
    return [whole._replace(start=start, end=end, size=size) for start, end in pairwise(ends)]
