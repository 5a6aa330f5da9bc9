"""A cluster's folder as another group of the same cluster would have written it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from streamd.objectstore.ends import make_end, read_end
from streamd.objectstore.names import PackName
from streamd.objectstore.packs import PackWriter
from streamd.raft.messages import Entry, EntryKind
from streamd.streams import keys
from streamd.streams.codec import decode_batch, encode_batch
from streamd.streams.commands import Command, FlushCold, MoveSlices
from streamd.streams.etags import incarnation_base
from streamd.streams.model import Header, Pack
from tests.spark.forging import Folder, Places, edit_row, move_state, put_state


def regrouped(folder: Folder, group_id: int) -> Folder:
    """The same objects, as another group of the same cluster would have written them. There must be
    no subscriptions in them."""
    found = Folder({}, folder.cluster_id, group_id)
    base = incarnation_base(group_id)
    renamed: dict[str, str] = {}
    for name in folder.packs():
        parsed = PackName.parse(folder.local(name))
        assert parsed is not None
        pack = PackWriter(group_id, parsed.term, parsed.number)
        for stream_id, chunk in folder.chunks(name):
            pack.add(stream_id, chunk)
        made = pack.finish()
        renamed[name] = found.put(made.name, made.content)
    places = Places(group_id)
    for name in folder.segments():
        found.put(*places.write(folder, name, lambda entry: _rewritten(entry, renamed, base)))
    for name in folder.names("ends"):
        end = read_end(folder.objects[name])
        found.put(
            *make_end(replace(end, group_id=group_id, position=places.at[end.position.index]))
        )
    for name in folder.manifests():
        rows = folder.rows(name)
        of = move_state(folder.manifest(name).of, rows, places)
        for key in [key for key in rows if key[:1] == keys.PACK]:
            pack_row = msgspec.msgpack.decode(rows[key], type=Pack)
            edit_row(rows, key, Pack, name=renamed[pack_row.name])
        edit_row(rows, keys.HEADER, Header, incarnation_base=base)
        put_state(found, replace(of, group_id=group_id), rows)
    return found


def _rewritten(entry: Entry, renamed: Mapping[str, str], base: int) -> Entry:
    """An entry whose commands name packs as they are called now, and whose clients saw ETags of
    the group with that base."""
    if entry.kind != EntryKind.COMMANDS:
        return entry
    batch = decode_batch(entry.payload)
    commands = [rewritten_command(command, renamed, base) for command in batch.commands]
    return replace(entry, payload=encode_batch(replace(batch, commands=commands)))


def rewritten_command(command: Command, renamed: Mapping[str, str], base: int) -> Command:
    """A command as it would be in another group: packs have other names, ETags another base."""
    if isinstance(command, FlushCold | MoveSlices):
        return replace(command, name=renamed[command.name])
    condition = getattr(command, "if_match", None)
    if condition is None or condition.versions is None:
        return command
    versions = tuple(
        replace(version, incarnation=base + version.incarnation) for version in condition.versions
    )
    return replace(command, if_match=replace(condition, versions=versions))
