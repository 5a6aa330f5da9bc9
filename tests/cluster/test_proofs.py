"""Every member proves a record, whichever led when it was appended and whichever leads now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from msgspec.structs import replace

from streamd.backup.record_search import Unprovable
from streamd.node.prover import Prover
from streamd.objectstore.errors import ColdError
from streamd.objectstore.names import SegmentName
from streamd.objectstore.segments import (
    SegmentWriter,
    read_entries,
    read_segment_head,
    tree_of_segment,
)
from streamd.proofs.heads import key_of
from streamd.protocol.problems import ProblemError
from streamd.raft.messages import Entry
from streamd.streams.commands import Delete, Outcome
from streamd.streams.offsets import START, Position
from streamd_audit.proof import Proved, verify_record
from tests.cluster.test_archive import archived, begin, hand_over
from tests.cluster.test_log_heads import all_have_heads, public
from tests.support.flaky_store import FlakyStore
from tests.support.machines import Machine, Machines, Play, wait_until
from tests.support.nodes import append, create, key


def prover_of(machine: Machine) -> Prover:
    assert machine.node.prover is not None
    return machine.node.prover


async def proof_by(machine: Machine, at: Position, name: str = "a") -> bytes:
    stream = await machine.node.reads.stream(key(name))
    assert stream is not None
    return await prover_of(machine).prove(key(name), stream, at)


async def appended(machine: Machine, data: bytes) -> Position:
    """Append; returns where the record begins."""
    outcome: Outcome = await machine.node.group.writes.propose(append("a", data))
    return Position(outcome.tail.record - 1, outcome.tail.byte - len(data))


async def all_have(machines: Machines, leader: Machine) -> None:
    """Wait until all members know that everything so far is archived."""
    await appended(leader, b"later")
    await archived(leader)
    index = leader.node.group.state.header.archived.index
    await wait_until(
        lambda: all(m.node.group.state.header.archived.index >= index for m in machines.all)
    )


def trusted(machine: Machine) -> str:
    """The cluster's first key, which is that of its first leader."""
    assert machine.node.archive is not None
    return str(key_of(machine.node.archive.heads.cluster_id, public(machine)))


def test_a_record_is_proved_by_every_member_after_every_change_of_leader(
    play_with_store: Play,
) -> None:
    async def scenario(machines: Machines) -> None:
        leader = first = await begin(machines)
        await all_have_heads(machines)
        records: dict[Position, bytes] = {}
        for to in (*machines.all, first):
            for number in range(5):
                data = b"%d of %d" % (number, leader.node_id)
                records[await appended(leader, data)] = data
            if not to.leads:
                await hand_over(machines, to)
            leader = to
            await all_have(machines, leader)
            entries: dict[Position, set[int]] = {}
            for machine in machines.all:
                for at, data in records.items():
                    proved = verify_record(await proof_by(machine, at), trusted(first))
                    assert (proved.stream, proved.record) == ("bucket/a", data)
                    entries.setdefault(at, set()).add(proved.entry)
            assert {len(found) for found in entries.values()} == {1}

    play_with_store(scenario)


def test_a_write_that_a_member_forwarded_and_sent_again_is_proved_once(
    play_with_store: Play,
) -> None:
    """Its package may be in the log twice; the first copy took effect."""

    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await all_have_heads(machines)
        follower = next(machine for machine in machines.all if not machine.leads)
        places = []
        for number in range(10):
            if number == 5:
                machines.part(follower, leader)
                to = next(m for m in machines.all if m not in (follower, leader))
                await hand_over(machines, to)
                machines.heal()
                leader = to
            places.append(await appended(follower, b"the same"))
        await all_have(machines, leader)
        key = trusted(leader)
        found: list[Proved] = []
        for at in places:
            assert prover_of(leader) is not None
            found.append(verify_record(await proof_by(leader, at), key))
        assert [one.record for one in found] == [b"the same"] * 10
        assert len({one.entry for one in found}) == 10

    play_with_store(scenario)


def test_a_name_that_another_stream_took_proves_only_that_one(play_with_store: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await all_have_heads(machines)
        await appended(leader, b"same")
        await leader.node.group.writes.propose(Delete(key("a")))
        await leader.node.group.writes.propose(create("a"))
        await appended(leader, b"same")
        last = leader.node.group.view.applied_index
        await all_have(machines, leader)
        proved = verify_record(await proof_by(leader, START), trusted(leader))
        assert proved.entry == last

    play_with_store(scenario)


def test_two_proofs_at_once_are_too_many(play_with_store: Play) -> None:
    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await all_have_heads(machines)
        at = await appended(leader, b"one")
        await all_have(machines, leader)
        answers: list[str] = []

        async def ask() -> None:
            try:
                await proof_by(leader, at)
                answers.append("proved")
            except ProblemError as error:
                answers.append(error.problem.code)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert sorted(answers) == ["PROOF_IN_PROGRESS", "PROOF_IN_PROGRESS", "proved"]
        await proof_by(leader, at)

    play_with_store(scenario)


def resealed(store: FlakyStore, change: Callable[[Entry], Entry]) -> None:
    """Change entries of the archived log, and make all checksums and names right again."""
    for info in store.page(""):
        folder, _, rest = info.name.partition("/")
        if SegmentName.parse(rest) is None:
            continue
        content = store.get(info.name, 0, info.size)
        head, frame = read_segment_head(content), tree_of_segment(content)
        assert frame is not None
        writer = SegmentWriter(head.group_id, head.previous, folder, frame.tree)
        for entry, _ in read_entries(content):
            writer.add(change(entry))
        changed = writer.finish()
        store.delete([info.name])
        store.put(f"{folder}/{changed.name}", changed.content)


@pytest.mark.parametrize(
    ("old", "new", "error"), [(b"mine", b"evil", Unprovable), (b"other", b"evils", ColdError)]
)
def test_a_log_that_was_changed_in_the_store_proves_nothing(
    play_with_store: Play, store: FlakyStore, old: bytes, new: bytes, error: type[Exception]
) -> None:
    """Neither if the record itself was changed, nor if its neighbour was."""

    async def scenario(machines: Machines) -> None:
        leader = await begin(machines)
        await all_have_heads(machines)
        for _ in range(5):
            await appended(leader, b"other")
        at = await appended(leader, b"mine")
        for _ in range(5):
            await appended(leader, b"other")
        await all_have(machines, leader)
        await proof_by(leader, at)
        resealed(store, lambda one: replace(one, payload=one.payload.replace(old, new)))
        for machine in machines.all:
            if machine is not leader:  # That one remembers what it has read.
                with pytest.raises(error):
                    await proof_by(machine, at)

    play_with_store(scenario)
