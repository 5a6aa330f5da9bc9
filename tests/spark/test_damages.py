"""The ways to damage a bucket: each does what it says, before any audit looks at it."""

from __future__ import annotations

import pytest

from streamd_audit.findings import KINDS
from tests.spark.damages import Damage, Scene
from tests.spark.damages_log import LOG
from tests.spark.damages_packs import PACKS
from tests.spark.damages_states import STATES
from tests.spark.forging import flaw

ALL = [*PACKS.damages, *LOG.damages, *STATES.damages]
each_damage = pytest.mark.parametrize("damage", ALL, ids=[damage.name for damage in ALL])


def test_the_clean_bucket_is_whole(scene: Scene) -> None:
    assert flaw(scene.folder) is None


def test_a_folder_put_together_again_is_the_same(scene: Scene) -> None:
    before = dict(scene.folder.objects)
    scene.folder.forge_log({})
    scene.folder.forge_state(lambda _: None)
    assert scene.folder.objects == before


@each_damage
def test_a_damage_changes_the_bucket_in_the_way_that_it_says(scene: Scene, damage: Damage) -> None:
    before = dict(scene.folder.objects)
    expected = damage.on(scene)
    assert scene.folder.objects != before
    assert (flaw(scene.folder) is None) == damage.is_whole, flaw(scene.folder)
    assert {one.kind for one in expected} <= set(KINDS)
    for one in expected:
        assert one.object is None or one.object in scene.folder.objects or "missing" in one.kind
