"""Nodes sign heads of the log's tree, with keys that lead back to the first one of the cluster."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from streamd.backup import log_keys
from streamd.backup.archive import Archive
from streamd.backup.log_keys import LogKeys, TooManyKeys
from streamd.backup.merging import Merger
from streamd.cluster.cluster import Cluster
from streamd.cluster.request_kinds import RequestKind
from streamd.group.log_formats import LOG_FORMAT, PRODUCERS_FORMAT
from streamd.group.proposals import Unavailable
from streamd.objectstore.names import HeadName
from streamd.proofs.heads import Head, key_of, public_key_of
from streamd.proofs.published import Checked, checked, is_continued, read_published
from streamd.proofs.tree import GrowingTree
from streamd.tiering.tier import LeaderTerm
from tests.backup.test_merging import archive_in_small_segments
from tests.cluster.test_administration import run_an_earlier_release
from tests.cluster.test_archive import archived, begin, hand_over, write
from tests.objectstore.test_tree_frames import leaf_of
from tests.support.flaky_store import FlakyStore
from tests.support.machines import Machine, Machines, Play, wait_until


def archive_of(machine: Machine) -> Archive:
    assert machine.node.archive is not None
    return machine.node.archive


def keys_of(machine: Machine) -> LogKeys:
    return archive_of(machine).heads.keys


def newest(machine: Machine) -> Checked:
    found = archive_of(machine).heads.newest()
    assert found is not None
    return checked(found)


def has_head(machine: Machine) -> bool:
    return archive_of(machine).heads.newest() is not None


def public(machine: Machine) -> bytes:
    return keys_of(machine).answer(b"")


async def all_have_heads(machines: Machines) -> None:
    await wait_until(lambda: all(has_head(machine) for machine in machines.all))


def stored_heads(store: FlakyStore) -> list[tuple[HeadName, bytes]]:
    found = []
    for info in store.page(""):
        name = HeadName.parse(info.name.partition("/")[2])
        if name is not None:
            found.append((name, store.get(info.name, 0, info.size)))
    return found


def test_each_node_signs_the_same_tree_under_the_first_key(
    play_with_store: Play, store: FlakyStore
) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await write(leader, 20)
        await all_have_heads(machines)
        await archived(leader)
        await wait_until(
            lambda: len({m.node.group.state.header.archived for m in machines.all}) == 1
        )
        found = [newest(machine) for machine in machines.all]
        assert len({one.head for one in found}) == 1
        first = key_of(found[0].head.cluster_id, public(leader))
        assert {one.first_key for one in found} == {first}
        names = [name for name, _ in stored_heads(store)]
        assert names[-1].log_index == found[0].head.index
        assert checked(read_published(stored_heads(store)[-1][1])) == newest(leader)

    play_with_store(scenario)


def test_every_leader_continues_the_tree(play_with_store: Play, store: FlakyStore) -> None:
    async def scenario(machines: Machines) -> None:
        await begin(machines)
        heads: list[Head] = []
        for to in (*machines.all, *machines.all):
            await write(await machines.leader(), 20)
            if not to.leads:
                await hand_over(machines, to)
            await wait_until(partial(has_head, to))
            await archived(to)
            heads.append(newest(to).head)
        leader = await machines.leader()
        await archived(leader)
        signed = archive_of(leader).heads
        for old in heads:
            now = await signed.since(old.size)
            assert now is not None
            assert is_continued(old, checked(now).head, now.path)
        for size in (0, newest(leader).head.size + 1):
            with pytest.raises(ValueError, match="has no earlier tree"):
                await signed.since(size)

    play_with_store(scenario)


def test_what_is_changed_in_the_store_changes_nothing_that_is_signed(
    play_with_store: Play, store: FlakyStore
) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await write(leader, 10)
        await all_have_heads(machines)
        await archived(leader)
        before = newest(leader).head
        for info in store.page(""):
            if "/log/" in info.name or "/heads/" in info.name:
                store.delete([info.name])
                store.put(info.name, b"forged")
        to = next(machine for machine in machines.all if machine is not leader)
        await hand_over(machines, to)
        await write(to, 10)
        await archived(to)
        group = to.node.group
        await wait_until(lambda: newest(to).head.size > before.size)
        head, tree = newest(to).head, GrowingTree()
        entries = await group.committed.after(head.first_index - 1, 10**9)
        for entry in entries[: head.size]:
            tree.add(leaf_of(entry))
        assert head.root == tree.root()

    play_with_store(scenario)


def test_a_new_member_is_vouched_for(play_with_store: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await write(leader, 5)
        await all_have_heads(machines)
        known = keys_of(leader).known
        assert [one.signed_by for one in known] == [b"", public(leader), public(leader)]
        assert {one.node_id for one in known} == {1, 2, 3}
        late = next(machine for machine in machines.all if machine is not leader)
        await late.kill()
        (late.path / "log-key").unlink()
        machines.start(late)
        await wait_until(lambda: late.is_ready)
        assert not has_head(late), "its new key is not known"
        await hand_over(machines, late)
        await wait_until(partial(has_head, late))
        found = newest(late)
        assert found.first_key == newest(leader).first_key
        assert len(keys_of(late).known) == 4

    play_with_store(scenario)


@pytest.mark.long
def test_a_leader_for_which_none_can_vouch_says_so(
    play_with_store: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await write(leader, 5)
        await all_have_heads(machines)
        first = newest(leader).first_key
        monkeypatch.setattr(LogKeys, "answer", lambda *_: b"nonsense")
        late = next(machine for machine in machines.all if machine is not leader)
        await late.kill()
        (late.path / "log-key").unlink()
        machines.start(late)
        await wait_until(lambda: late.is_ready)
        await hand_over(machines, late)
        begun = trio.current_time()
        await wait_until(partial(has_head, late), 2 * log_keys.PATIENCE_S)
        assert trio.current_time() - begun >= log_keys.PATIENCE_S
        assert newest(late).first_key != first
        assert keys_of(late).known[-1].signed_by == b""

    play_with_store(scenario)


def test_a_key_is_rotated(play_with_store: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await write(leader, 5)
        await all_have_heads(machines)
        for machine in (leader, next(one for one in machines.all if not one.leads)):
            former, before = public(machine), newest(machine)
            key = await keys_of(machine).rotate()
            assert key.signed_by == former
            assert key.public_key == public(machine) != former
            await wait_until(partial(has_head, machine))
            assert newest(machine) == before._replace(head=newest(machine).head)
            kept = (machine.path / "log-key").read_bytes()
            assert public_key_of(kept) == public(machine)
        assert leader.node.group.state.header.log_keys[3].signed_by == public_key_of_first(leader)
        monkeypatch.setattr("streamd.streams.cold.packing.MAX_LOG_KEYS", 5)
        with pytest.raises(TooManyKeys):
            await keys_of(leader).rotate()
        await machine.kill()
        machines.start(machine)
        await wait_until(lambda: machine.is_ready and has_head(machine))
        assert newest(machine).first_key == before.first_key

    def public_key_of_first(machine: Machine) -> bytes:
        return machine.node.group.state.header.log_keys[0].public_key

    play_with_store(scenario)


@pytest.mark.long
def test_a_leader_signs_nothing_when_all_keys_are_used(
    play_with_store: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await write(leader, 5)
        await all_have_heads(machines)
        monkeypatch.setattr(log_keys, "MAX_LOG_KEYS", 3)
        late = next(machine for machine in machines.all if machine is not leader)
        await late.kill()
        (late.path / "log-key").unlink()
        machines.start(late)
        await wait_until(lambda: late.is_ready)
        await hand_over(machines, late)
        await write(late, 5)
        await archived(late)
        index = late.node.group.view.applied_index
        await trio.sleep(3 * log_keys.PATIENCE_S)
        assert late.node.group.view.applied_index < index + 30, "it is not proposed every round"
        assert not has_head(late)

    play_with_store(scenario)


def test_only_members_learn_and_vouch_for_keys(play_with_store: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await write(leader, 5)
        await all_have_heads(machines)
        keys, cluster = keys_of(leader), leader.node.cluster
        assert isinstance(cluster, Cluster)
        with pytest.raises(Unavailable, match="a key has 32 bytes, not 5"):
            keys.answer(b"short")
        stranger = await cluster_request(cluster, 9)
        assert stranger == "NOT_A_MEMBER"

    async def cluster_request(cluster: Cluster, peer_id: int) -> str:
        from streamd.transport.errors import RequestRefused

        with pytest.raises(RequestRefused) as refused:
            await cluster.on_request(peer_id, 0, RequestKind.LOG_KEY, b"")
        return refused.value.code

    play_with_store(scenario)


def test_a_tree_begins_once_all_members_understand_it(
    play_with_store: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = {1: LOG_FORMAT, 2: LOG_FORMAT, 3: PRODUCERS_FORMAT}
    run_an_earlier_release(monkeypatch, earlier, {})

    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        if leader.node_id == 3:
            await hand_over(machines, machines.all[0])
        leader = await machines.leader()
        await write(leader, 10)
        await archived(leader)
        state = leader.node.group.state
        assert state.header.tree.first_index == 0
        assert not has_head(leader)
        assert state.header.log_keys == ()
        without = state.header.archived.index
        [third] = [machine for machine in machines.all if machine.node_id == 3]
        await third.kill()
        earlier[3] = LOG_FORMAT
        machines.start(third)
        await wait_until(lambda: third.is_ready)
        await write(leader, 10)
        await all_have_heads(machines)
        await archived(leader)
        header = leader.node.group.state.header
        assert header.tree.first_index > without
        assert newest(leader).head.index == header.archived.index

    play_with_store(scenario)


@pytest.mark.long
def test_a_merge_keeps_what_proves_that_the_tree_was_continued(
    play_with_store: Play, store: FlakyStore
) -> None:
    async def scenario(machines: Machines) -> None:
        await begin(machines)
        leader = await machines.leader()
        await all_have_heads(machines)
        old = newest(leader).head
        await archive_in_small_segments(leader, 40)
        before = [info.name for info in store.page("") if "/log/" in info.name]
        target = archive_of(leader).target
        await Merger(target).make_round(LeaderTerm(leader.node.group.view.term))
        after = [info.name for info in store.page("") if "/log/" in info.name]
        assert len(after) < len(before) / 2
        now = await archive_of(leader).heads.since(old.size)
        assert now is not None
        assert is_continued(old, checked(now).head, now.path)

    play_with_store(scenario)
