"""A cluster writes its first state seconds after the first segment of its log; packs without a
state are a fault only later than that."""

from __future__ import annotations

import pytest

from streamd.objectstore.segments import read_segment_head
from streamd_audit.verdict import Verdict
from tests.spark.forging import Folder
from tests.spark.tamper.memory_store import MemoryStore
from tests.spark.tamper.stores import Grown
from tests.spark.tamper.twin import Twin


@pytest.fixture
def young(stores: tuple[Grown, Grown]) -> Folder:
    """What there was before the clock was moved for the second state: packs and one state."""
    grown, _ = stores
    folder = Folder(grown.moments[0], grown.cluster_id)
    heads = [read_segment_head(folder.objects[name]) for name in folder.segments()]
    soon = heads[0].last.time_ms + 60_000
    moved = next(head.first_index for head in heads if head.last.time_ms > soon)
    for kind in ("log", "ends", "heads", "snapshots", "pieces"):
        for name in folder.names(kind):
            if int(folder.local(name).split("/")[2][:16], 16) >= moved:
                del folder.objects[name]
    assert folder.packs()
    assert folder.manifests()
    return folder


def without_states(folder: Folder) -> Verdict:
    for name in folder.manifests():
        for piece in folder.pieces(name):
            del folder.objects[piece]
        del folder.objects[name]
    return Twin(folder.cluster_id).verdict(MemoryStore(folder.objects))


def test_packs_of_a_cluster_without_its_first_state_are_no_fault(young: Folder) -> None:
    verdict = without_states(young)
    assert verdict.is_clean
    assert "states_missing" in {one.kind for one in verdict.listed}


def test_packs_of_an_older_cluster_without_states_are_a_fault(
    stores: tuple[Grown, Grown],
) -> None:
    grown, _ = stores
    verdict = without_states(Folder(grown.objects, grown.cluster_id))
    assert "states_missing" in {one.finding.kind for one in verdict.faults}


def test_a_log_whose_beginning_is_gone_is_not_young(young: Folder) -> None:
    del young.objects[young.segments()[0]]
    verdict = without_states(young)
    assert "states_missing" in {one.finding.kind for one in verdict.faults}
