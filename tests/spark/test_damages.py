"""The ways to damage a bucket do what they say, independently of any audit."""

from __future__ import annotations

import os

import pytest

from streamd.streams.commands import Append
from streamd.streams.etags import incarnation_base
from streamd_audit.findings import KINDS
from tests.spark.audit_page import CATALOGUES, PAGE, damages_table, kinds_table, marked, with_table
from tests.spark.buckets import Clean
from tests.spark.damages import Damage, Scene
from tests.spark.damages_live import LIVE
from tests.spark.damages_log import LOG
from tests.spark.damages_odd_log import ODD_LOG
from tests.spark.damages_older_states import OLDER_STATES
from tests.spark.damages_packs import PACKS
from tests.spark.damages_states import STATES
from tests.spark.forging import flaw
from tests.spark.regrouping import rewritten_command

ALL = [
    *PACKS.damages,
    *LOG.damages,
    *ODD_LOG.damages,
    *STATES.damages,
    *OLDER_STATES.damages,
]
each_damage = pytest.mark.parametrize("damage", ALL, ids=[damage.name for damage in ALL])


def test_the_clean_bucket_is_whole(scene: Scene) -> None:
    assert flaw(scene.folder) is None


def test_a_reassembled_folder_is_unchanged(scene: Scene) -> None:
    before = dict(scene.folder.objects)
    scene.folder.forge_log({})
    scene.folder.forge_state(lambda _: None)
    assert scene.folder.objects == before


def test_a_folder_moved_to_another_group_is_whole_and_equal(rich: Clean, little: Clean) -> None:
    of, other = Scene.of(rich, little).folder, Scene.of(rich, little, 7).folder
    assert flaw(other) is None
    assert not of.objects.keys() & other.objects.keys()
    # Heads are signed, so the other group has none.
    assert len(of.objects) - len(of.names("heads")) == len(other.objects)
    base = incarnation_base(7)
    assert [
        rewritten_command(said.command, {}, base)
        for said in of.commands()
        if isinstance(said.command, Append)
    ] == [said.command for said in other.commands() if isinstance(said.command, Append)]
    assert of.stream("agents/chat") == other.stream("agents/chat")


@each_damage
def test_a_damage_changes_the_bucket_as_its_title_says(scene: Scene, damage: Damage) -> None:
    before = dict(scene.folder.objects)
    expected = damage.on(scene)
    assert scene.folder.objects != before
    assert (flaw(scene.folder) is None) == damage.is_whole, flaw(scene.folder)
    assert {one.kind for one in expected} <= set(KINDS)
    for one in expected:
        assert one.object is None or one.object in scene.folder.objects or "missing" in one.kind


@pytest.mark.parametrize("damage", LIVE.damages, ids=[damage.name for damage in LIVE.damages])
def test_a_damage_to_a_live_node_changes_its_rows(scene: Scene, damage: Damage) -> None:
    rows = scene.folder.state()
    before = dict(rows)
    [expected] = damage.on(rows)
    assert rows != before
    assert expected.kind in KINDS


def test_the_page_lists_every_damage_and_kind(rich: Clean, little: Clean) -> None:
    kinds: dict[str, list[str]] = {}
    for catalogue in CATALOGUES:
        for damage in catalogue.damages:
            scene = Scene.of(rich, little)
            target = scene.folder.state() if catalogue is LIVE else scene
            kinds[damage.name] = [one.kind for one in damage.on(target)]
    tables = {"damages": damages_table(kinds), "kinds": kinds_table()}
    page = PAGE.read_text()
    if os.environ.get("AUDIT_PAGE") == "write":
        for name, table in tables.items():
            page = with_table(page, name, table)
        PAGE.write_text(page)
    for name, table in tables.items():
        assert marked(page, name).strip() == table.strip(), "run it with AUDIT_PAGE=write"
