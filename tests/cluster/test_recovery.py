"""A survivor of a lost majority continues alone, as a new cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from streamd.cluster.recovery import recover_alone
from streamd.commands.cli import main
from streamd.config.settings import ClusterConfig, Config, ServerConfig
from streamd.group.stores import Stores, open_core
from streamd.raft.chain import ChainPosition
from streamd.raft.membership import BOOTSTRAP_HARD_STATE, bootstrap_entry
from streamd.raft.messages import Entry, EntryKind, HardState
from streamd.storage.errors import NothingToRecover, RecoveryUnfinished
from streamd.storage.files import write_checked
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import Result
from streamd.streams.model import IfMatch
from streamd.streams.state import State
from tests.support.directories import copy_in_use
from tests.support.nodes import append, create, key, read_all, running_node

CLUSTER = ClusterConfig(name="lost")


@pytest.fixture
def survivor(tmp_path: Path) -> Path:
    """The data of one of three nodes; the last entry never reached another."""
    stores = Stores.open(tmp_path / "data", 1, CLUSTER)
    addresses = ((1, "a:1", "a:2"), (2, "b:1", "b:2"), (3, "c:1", "c:2"))
    stores.log.append([bootstrap_entry([1, 2, 3], addresses)], BOOTSTRAP_HARD_STATE)
    for index, command in ((2, create("a")), (3, append("a", b"kept"))):
        payload = encode_batch(Batch(1_000, [command]))
        stores.log.append([Entry(index, 7, EntryKind.COMMANDS, payload)], HardState(7, 2))
    stores.close()
    return tmp_path / "data"


async def test_a_survivor_serves_the_entries_of_its_log(survivor: Path) -> None:
    config = Config(server=ServerConfig(data_dir=str(survivor)), cluster=CLUSTER)
    report = recover_alone(config)
    assert report.former_voters == [1, 2, 3]
    assert (report.last_index, report.last_term) == (3, 7)
    async with running_node(survivor) as node:
        assert await read_all(node, "a") == b"kept"
        assert node.group.view.configuration.voters == (1,)
        assert node.group.view.configuration.addresses == ((1, "127.0.0.1:4438", "127.0.0.1:4437"),)


def test_the_recovered_cluster_has_a_new_id(survivor: Path) -> None:
    config = Config(server=ServerConfig(data_dir=str(survivor)), cluster=CLUSTER)
    first = recover_alone(config)
    again = recover_alone(config)
    assert len({first.former_cluster_id, first.cluster_id, again.cluster_id}) == 3
    assert again.former_cluster_id == first.cluster_id
    assert again.former_voters == [1]


def test_the_command_requires_a_confirmation_that_data_may_be_lost(survivor: Path) -> None:
    runner = CliRunner()
    arguments = ["recover", "--offline", "--data-dir", str(survivor)]
    refused = runner.invoke(main, arguments)
    assert refused.exit_code == 2
    assert "--accept-data-loss" in refused.output
    done = runner.invoke(main, [*arguments, "--accept-data-loss"])
    assert done.exit_code == 0, done.output
    assert "log ends at entry 3 (term 7)" in done.output


def images_of_a_recovery(survivor: Path, to: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What a kill would leave before and after each file is renamed or removed; LevelDB's writes
    are between two of these."""
    images: list[Path] = []
    numbers = count()

    def watched(name: str) -> None:
        call: Callable[..., None] = getattr(os, name)

        def and_look(*arguments: object, **named: object) -> None:
            images.append(copy_in_use(survivor, to / f"{next(numbers)}-before-{name}"))
            call(*arguments, **named)
            images.append(copy_in_use(survivor, to / f"{next(numbers)}-after-{name}"))

        patch.setattr(os, name, and_look)

    with monkeypatch.context() as patch:
        watched("rename")
        watched("unlink")
        recover_alone(Config(server=ServerConfig(data_dir=str(survivor)), cluster=CLUSTER))
    return images


def start(data: Path) -> tuple[tuple[int, ...], bool]:
    """The voters of a node that starts from the directory, and whether it would vote."""
    stores = Stores.open(data, 1, CLUSTER)
    try:
        core = open_core(stores, State(stores.state), Random(1), CLUSTER)
        return core.configuration.voters, stores.log.lost_below is None
    finally:
        stores.close()


def test_a_recovery_killed_at_any_step_is_not_begun_done_or_must_be_repeated(
    survivor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checked(survivor / "lost", ChainPosition(3))
    images = images_of_a_recovery(survivor, tmp_path / "images", monkeypatch)
    unfinished = [image for image in images if is_unfinished(image)]
    assert 4 < len(unfinished) < len(images)
    for image in images:
        if image in unfinished:
            with pytest.raises(RecoveryUnfinished, match="recover --offline"):
                start(image)
        else:
            assert start(image) in (((1, 2, 3), False), ((1,), True)), image.name


def test_a_repeated_recovery_finishes_a_killed_one_with_the_same_report(
    survivor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checked(survivor / "lost", ChainPosition(3))
    former = Stores.open(survivor, 1, CLUSTER)
    former.close()
    for image in images_of_a_recovery(survivor, tmp_path / "images", monkeypatch):
        was_done = not is_unfinished(image) and start(image) == ((1,), True)
        config = Config(server=ServerConfig(data_dir=str(image)), cluster=CLUSTER)
        report = recover_alone(config)
        assert start(image) == ((1,), True), image.name
        if not was_done:
            assert report.former_cluster_id == former.data_dir.identity.cluster_id
            assert report.former_voters == [1, 2, 3]
            assert (report.last_index, report.lost_below_index) == (3, 3)


def is_unfinished(data: Path) -> bool:
    try:
        start(data)
    except RecoveryUnfinished:
        return True
    return False


def test_a_running_node_is_not_changed(survivor: Path) -> None:
    stores = Stores.open(survivor, 1, CLUSTER)
    arguments = ["recover", "--offline", "--accept-data-loss", "--data-dir", str(survivor)]
    refused = CliRunner().invoke(main, arguments)
    stores.close()
    assert refused.exit_code == 1


def test_a_path_without_a_nodes_data_is_refused_and_not_created(tmp_path: Path) -> None:
    mistyped = tmp_path / "mistyped"
    config = Config(server=ServerConfig(data_dir=str(mistyped)), cluster=CLUSTER)
    with pytest.raises(NothingToRecover, match="mistyped"):
        recover_alone(config)
    assert not mistyped.exists()


def test_a_node_that_never_was_a_member_is_not_recovered(tmp_path: Path) -> None:
    Stores.open(tmp_path, 1, CLUSTER).close()
    config = Config(server=ServerConfig(data_dir=str(tmp_path)), cluster=CLUSTER)
    with pytest.raises(NothingToRecover):
        recover_alone(config)
    stores = Stores.open(tmp_path, 1, CLUSTER)
    assert stores.log.last_index == 0
    stores.close()


async def test_tags_of_lost_entries_match_nothing_after_a_recovery(
    survivor: Path, tmp_path: Path
) -> None:
    config = Config(server=ServerConfig(data_dir=str(survivor)), cluster=CLUSTER)
    bases = {0}
    for name in ("first", "second"):
        recover_alone(config)
        async with running_node(survivor) as node:
            base = node.group.state.header.incarnation_base
            bases.add(base)
            stream = node.group.state.streams.get(key("a"))
            assert stream is not None
            lost = IfMatch((stream.version(),))
            refused = await node.group.writes.propose(replace(append("a", b"x"), if_match=lost))
            assert refused.result is Result.PRECONDITION_FAILED
        # A node that gets only the log, as an added one does, has the same tags.
        shutil.copytree(survivor, tmp_path / name)
        shutil.rmtree(tmp_path / name / "state")
        async with running_node(tmp_path / name) as node:
            assert node.group.state.header.incarnation_base == base
    assert len(bases) == 3
