"""Whatever is changed in a store, the audit finds it, or the page says why nothing can.

The audit's twin without Spark judges thousands of mutations, by new seeds with each commit. One
that it does not find must be on the list of docs/audit.md, or change nothing that a restore to any
state shows. `SEED=17 pytest tests/spark/tamper` judges that one.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from streamd.objectstore.names import ManifestName
from streamd_audit.directories import DirectoryStore
from streamd_audit.store import Store
from streamd_audit.verdict import Verdict
from tests.spark.forging import Folder
from tests.spark.tamper.changes import LEVELS
from tests.spark.tamper.memory_store import MemoryStore
from tests.spark.tamper.mutations import Mutation, mutation
from tests.spark.tamper.restoring import Restorer, Shown
from tests.spark.tamper.stores import Grown, grow, grow_other, write_objects
from tests.spark.tamper.twin import Twin
from tests.spark.tamper.unseen import unseen
from tests.support.seeds import first_seed, replayed

# How many mutations one test judges; and how many such tests have always the same seeds, and those
# of the commit.
BLOCK = 200
FIXED, NEW = (5, 10) if os.environ.get("AUDIT_TESTS") == "all" else (3, 5)


def blocks(fixed: int, new: int) -> list[int]:
    """The first seeds of blocks."""
    if (named := replayed()) is not None:
        return [named]
    seeds = [BLOCK * number for number in range(fixed)]
    seeds += [10_000 + first_seed() + BLOCK * number for number in range(new)]
    return seeds


@dataclass
class Tally:
    """What became of mutations, by their levels; `unfound` are the names of those that nothing
    shows."""

    found: Counter[str] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)
    listed: Counter[str] = field(default_factory=Counter)
    harmless: Counter[str] = field(default_factory=Counter)
    unfound: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [
            f"{word}: {sum(counts.values())} {dict(sorted(counts.items()))}"
            for word, counts in (
                ("found", self.found),
                ("the same store", self.same),
                ("on the list", self.listed),
                ("without effect", self.harmless),
            )
        ]
        return "; ".join([*parts, f"unfound: {len(self.unfound)}"])


class Net:
    """Judges mutations of one store."""

    def __init__(self, grown: Grown, foreign: Grown, directory: Path) -> None:
        self.grown = grown
        self.foreign = foreign
        self._directory = directory
        self._twin = Twin(grown.cluster_id)
        folder = Folder(grown.objects, grown.cluster_id)
        indexes = [folder.manifest(name).of.index for name in folder.manifests()]
        self._restorer = Restorer(directory / "restoring", grown.cluster_id, indexes)
        self._shown: list[Shown] = []
        self._unseen = unseen()
        assert not self._twin.findings(MemoryStore(grown.objects))

    def judge(self, seeds: Sequence[int]) -> Tally:
        tally = Tally()
        for seed in seeds:
            one = mutation(seed, self.grown, self.foreign)
            if one.objects == self.grown.objects and not one.odd:
                tally.same[one.level] += 1
            elif self._is_found(one):
                tally.found[one.level] += 1
            elif any(each.matches(one.pattern) for each in self._unseen):
                tally.listed[one.level] += 1
            elif self._is_harmless(one):
                tally.harmless[one.level] += 1
            else:
                tally.unfound.append(f"seed {seed}: {one.name}")
        return tally

    def verdict(self, one: Mutation) -> Verdict:
        with self._store(one) as store:
            return self._twin.verdict(store, one.mark)

    def _is_found(self, one: Mutation) -> bool:
        """Whether there is a fault, or an object too many is at least listed."""
        verdict = self.verdict(one)
        return bool(verdict.faults) or (
            bool(verdict.listed) and one.objects.items() >= self.grown.objects.items()
        )

    @contextmanager
    def _store(self, one: Mutation) -> Iterator[Store]:
        if not one.odd:
            yield MemoryStore(one.objects)
            return
        root = self._directory / "odd"
        write_objects(root, one.objects)
        for name, make in one.odd.items():
            make(os.fsencode(root) + b"/" + name)
        try:
            yield DirectoryStore(root)
        finally:
            shutil.rmtree(root)

    def _is_harmless(self, one: Mutation) -> bool:
        self._shown = self._shown or self._restorer.shown(self.grown.objects)
        return self._restorer.shown(one.objects) == self._shown


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grown, Grown]:
    """A cluster's store, and another's."""
    grown = trio.run(grow, tmp_path_factory.mktemp("grown"))
    return grown, trio.run(grow_other, tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def net(stores: tuple[Grown, Grown], tmp_path_factory: pytest.TempPathFactory) -> Net:
    return Net(*stores, tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def aged_net(stores: tuple[Grown, Grown], tmp_path_factory: pytest.TempPathFactory) -> Net:
    """Of a store of which retention has removed the beginning."""
    return Net(_aged(stores[0]), stores[1], tmp_path_factory.mktemp("aged-net"))


def _aged(grown: Grown) -> Grown:
    """What retention leaves: all but the oldest states, and the log after the first that stays."""
    folder = Folder(grown.objects, grown.cluster_id)
    for name in folder.manifests()[:2]:
        for piece in folder.pieces(name):
            del folder.objects[piece]
        del folder.objects[name]
    oldest = ManifestName.parse(folder.local(folder.manifests()[0]))
    assert oldest is not None
    for name in folder.segments():
        if folder.entries(name)[-1].index <= oldest.log_index:
            del folder.objects[name]
    return Grown(grown.cluster_id, folder.objects, grown.moments, is_cut=True)


def _check(net: Net, seed: int) -> None:
    tally = net.judge(range(seed, seed + (1 if replayed() is not None else BLOCK)))
    print(tally)
    assert not tally.unfound, "\n".join(tally.unfound)


@pytest.mark.long
@pytest.mark.parametrize("seed", blocks(FIXED, NEW))
def test_a_mutation_is_found_or_on_the_list_or_without_effect(net: Net, seed: int) -> None:
    _check(net, seed)


@pytest.mark.parametrize("seed", blocks(FIXED - 1, NEW - 3))
@pytest.mark.long
def test_a_mutation_of_what_retention_left_is_found(aged_net: Net, seed: int) -> None:
    _check(aged_net, seed)


def test_each_line_of_the_list_is_about_something(net: Net, aged_net: Net) -> None:
    left = unseen()
    for seed in range(2000):
        for of in (net, aged_net):
            one = mutation(seed, of.grown, of.foreign, of=("element", "history", "object", "set"))
            is_about = [line for line in left if line.matches(one.pattern)]
            if is_about and of.verdict(one).is_clean:
                left = [line for line in left if line not in is_about]
        if not left:
            break
    assert not left, left


def test_a_mutation_comes_again_from_its_seed(stores: tuple[Grown, Grown]) -> None:
    for seed in range(40):
        one, again = mutation(seed, *stores), mutation(seed, *stores)
        assert (one.name, one.objects, one.odd.keys()) == (
            again.name,
            again.objects,
            again.odd.keys(),
        )


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_each_level_changes_the_store(stores: tuple[Grown, Grown], level: str) -> None:
    some = [mutation(seed, *stores, of=[level]) for seed in range(20)]
    changed = [one for one in some if one.odd or one.objects != stores[0].objects]
    assert len(changed) >= 15, [one.name for one in some]
