"""The tree over the log of segments as the server writes them, each read by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.objectstore.names import NamedObject
from streamd.proofs.tree import root_of
from streamd_audit.log_trees import PartMaker, SegmentPart, judged
from streamd_audit.names import SegmentName, parse
from streamd_audit.segments import read_entries
from tests.objectstore.test_tree_frames import ENTRIES, FIRST_INDEX, LEAVES, segments

_LAST = FIRST_INDEX + len(ENTRIES) - 1


def part_of(segment: NamedObject, places: set[int], content: bytes | None = None) -> SegmentPart:
    name = parse(segment.name)
    assert isinstance(name, SegmentName)
    made = PartMaker(segment.name, name, content or segment.content, places)
    for entry in read_entries(segment.content):
        made.add(entry)
    return made.finish(None)


@settings(deadline=None, max_examples=20)
@given(
    cuts=st.sets(st.integers(1, len(ENTRIES) - 1), max_size=4),
    places=st.sets(st.integers(FIRST_INDEX, _LAST), max_size=4),
)
def test_segments_have_the_roots_of_the_log(cuts: set[int], places: set[int]) -> None:
    ends = [*sorted(cuts), len(ENTRIES)]
    sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    parts = [part_of(one, places) for one in segments(sizes)]
    found = list(judged(parts, places))
    assert {place.size for place, _ in found} == {
        index - FIRST_INDEX + 1 for index in places | {_LAST}
    }
    for place, problem in found:
        assert problem is None
        assert place.root == root_of(LEAVES[: place.size])
        assert place.read == place.size


def test_a_wrong_root_of_a_large_subtree_in_a_segment_is_reported() -> None:
    (segment,) = segments([len(ENTRIES)])
    [(place, _)] = judged([part_of(segment, set())], set())
    assert place.read == len(ENTRIES)
    large = root_of(LEAVES[:256])
    at = segment.content.rindex(large)
    content = bytearray(segment.content)
    content[at : at + len(large)] = bytes(len(large))
    [(place, problem)] = judged([part_of(segment, set(), bytes(content))], set())
    assert place.root is None
    assert problem == "a segment names roots of subtrees that its entries lack"


def test_entries_that_retention_removed_are_not_counted() -> None:
    _, *left = segments([300, 500, 400])
    [(place, problem)] = judged([part_of(one, set()) for one in left], set())
    assert (place.size, place.read, problem) == (1200, 900, None)
