"""An incremental audit judges each group from where an earlier one has judged it to."""

from __future__ import annotations

from msgspec.structs import replace

from streamd.streams.commands import Append
from streamd_audit.watermark import Mark, Since
from tests.spark.forging import Folder, flipped
from tests.spark.regrouping import regrouped
from tests.spark.tamper.memory_store import MemoryStore
from tests.spark.tamper.stores import Grown
from tests.spark.tamper.twin import Twin


def test_each_group_continues_from_its_own_mark(stores: tuple[Grown, Grown]) -> None:
    grown = stores[0]
    own = Folder(grown.objects, grown.cluster_id)
    other = regrouped(own, 1)
    oldest, *_, newest = (own.manifest(name).of for name in own.manifests())
    said = next(
        one
        for one in other.find(lambda one: isinstance(one, Append) and bool(one.data))
        if oldest.index < one.index < newest.index
    )
    changed = replace(said.command, data=flipped(said.command.data, 0))
    other.forge_command(said.index, said.position, changed)
    objects = {**grown.objects, **other.objects}

    def groups(*marks: Mark) -> set[int | None]:
        since = Since(newest.index, marks)
        found = Twin(grown.cluster_id).findings(MemoryStore(objects), since=since)
        return {one.group for one in found if one.kind in ("bytes_differ", "slice_contradicts_log")}

    all_of_it, some = (Mark(0, one.index, 0, 0) for one in (newest, oldest))
    assert groups(all_of_it, some._replace(group=1)) == {1}
    assert groups(all_of_it) == {1}, "no earlier audit has judged it"
    assert groups(all_of_it, all_of_it._replace(group=1)) == set(), (
        "what was judged is not judged again"
    )
