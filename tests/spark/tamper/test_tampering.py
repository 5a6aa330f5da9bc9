"""Whatever is changed in a store, the audit finds it, or the page says why nothing can.

The audit's twin without Spark judges thousands of mutations, by new seeds with each commit. One
that it does not find must be on the list of docs/audit.md, or change nothing that a restore to any
state shows. What is on the list is judged again with heads that were kept outside of the store:
they must show it, unless the page says why they cannot.

`SEED=17 pytest tests/spark/tamper` judges that one.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from streamd.objectstore.errors import ColdError
from streamd.objectstore.names import ManifestName
from streamd.proofs.heads import Unsigned
from streamd.proofs.published import checked, read_published
from streamd.raft.messages import Entry
from streamd_audit.directories import DirectoryStore
from streamd_audit.store import Store
from streamd_audit.verdict import Verdict
from tests.spark.forging import Folder
from tests.spark.tamper.changes import LEVELS
from tests.spark.tamper.memory_store import MemoryStore
from tests.spark.tamper.mutations import Mutation, mutation
from tests.spark.tamper.restoring import Restorer, Shown
from tests.spark.tamper.signing import head_name
from tests.spark.tamper.stores import Grown, Objects, write_objects
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
        self._heads = {head_name(folder, name).log_index: name for name in folder.names("heads")}
        assert not self._twin.findings(MemoryStore(grown.objects), None, self._kept(*self._heads))

    def judge(self, seeds: Sequence[int]) -> Tally:
        tally = Tally()
        for seed in seeds:
            one = mutation(seed, self.grown, self.foreign)
            if one.objects == self.grown.objects and not one.odd:
                tally.same[one.level] += 1
            elif self._is_found(one):
                tally.found[one.level] += 1
            elif (told := self._hidden_from_heads(one)) is not None:
                tally.unfound.append(f"seed {seed}: {one.name}, {told}")
            elif any(each.matches(one.pattern) for each in self._unseen):
                tally.listed[one.level] += 1
            elif self._is_harmless(one):
                tally.harmless[one.level] += 1
            else:
                tally.unfound.append(f"seed {seed}: {one.name}")
        return tally

    def verdict(self, one: Mutation, kept: Sequence[Path] = ()) -> Verdict:
        with self._store(one) as store:
            return self._twin.verdict(store, one.mark, kept)

    def _hidden_from_heads(self, one: Mutation) -> str | None:
        """Which kept head must show a change and does not: the newest, what is on the list, and an
        older one another log up to its entry."""
        newest, some = max(self._heads), Random(one.seed).choice(sorted(self._heads))
        log = entries_in(self.grown, self.grown.objects)
        changed = entries_in(self.grown, one.objects)
        for index in (newest, some):
            is_other = any(
                changed.get(at) != entry
                for at, entry in log.items()
                if min(changed, default=0) <= at <= index
            )
            if is_other and not self._is_found(one, self._kept(index)):
                return f"with a head of entry {index}"
        is_due = any(each.shown_by_head and each.matches(one.pattern) for each in self._unseen)
        if is_due and not self._is_found(one, self._kept(newest)) and not self._is_harmless(one):
            return f"with a head of entry {newest}"
        return None

    def _kept(self, *indexes: int) -> list[Path]:
        """Files outside of the store, with its heads of these entries."""
        found = []
        for index in indexes:
            found.append(self._directory / f"{index}.head")
            found[-1].parent.mkdir(exist_ok=True)
            found[-1].write_bytes(self.grown.objects[self._heads[index]])
        return found

    def _is_found(self, one: Mutation, kept: Sequence[Path] = ()) -> bool:
        """Whether there is a fault, or an object too many is at least listed."""
        verdict = self.verdict(one, kept)
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
        if not self._are_heads_true(one.objects):
            return False
        if _restored(one.objects) == _restored(self.grown.objects):
            return True
        self._shown = self._shown or self._restorer.shown(self.grown.objects)
        return self._restorer.shown(one.objects) == self._shown

    def _are_heads_true(self, objects: Objects) -> bool:
        """Whether the heads that are left are those of this log, signed by the cluster's keys."""
        folder = Folder(objects, self.grown.cluster_id)
        try:
            said = [checked(read_published(objects[name])) for name in folder.names("heads")]
        except Unsigned:
            return False
        before = (self.grown.objects, *self.grown.moments)
        true = {
            checked(read_published(content))
            for moment in before
            for name, content in moment.items()
            if "/heads/" in name
        }
        return true.issuperset(said)


def entries_in(grown: Grown, objects: Objects) -> dict[int, Entry]:
    """The log, as far as its segments can be read."""
    folder = Folder(objects, grown.cluster_id)
    found: dict[int, Entry] = {}
    for name in folder.segments():
        try:
            found |= {entry.index: entry for entry in folder.entries(name)}
        except ColdError:
            continue
    return found


def _restored(objects: Objects) -> Objects:
    """What a restore reads."""
    return {name: content for name, content in objects.items() if "/heads/" not in name}


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


@pytest.mark.long
def test_each_line_of_the_list_is_about_something(net: Net, aged_net: Net) -> None:
    left = unseen()
    for seed in range(6000):
        levels = sorted({pattern.partition("/")[0] for line in left for pattern in line.patterns})
        for of in (net, aged_net):
            one = mutation(seed, of.grown, of.foreign, levels)
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
