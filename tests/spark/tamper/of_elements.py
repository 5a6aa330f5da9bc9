"""Changes to an element of a decoded object, with all checksums, digests and names made good."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from struct import pack, pack_into
from typing import Any, get_args

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from streamd.objectstore.checkpoints import CheckpointOf
from streamd.objectstore.names import EndName, ManifestName, digest_of
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.commands import Append, Create
from streamd_audit import commands, packs, rows, subscriptions
from streamd_audit.names import PackName, parse
from tests.spark.forging import Rows, put_state
from tests.spark.resealing import pack_of
from tests.spark.tamper import leaves, log_forgery, signing
from tests.spark.tamper.changes import Site, Unfit, change

_FIELDS_OF_COMMANDS = {
    kind.__struct_config__.tag: kind.__struct_fields__ for kind in get_args(commands.Command)
}
_FIELDS_OF_ROWS: dict[str, tuple[str, ...]] = {
    "header": rows.Header.__struct_fields__,
    "bucket": rows.Bucket.__struct_fields__,
    "stream": rows.Stream.__struct_fields__,
    "producer": rows.ProducerState.__struct_fields__,
    "blob": rows.Blob.__struct_fields__,
    "upload": rows.Upload.__struct_fields__,
    "slice": rows.ColdSlice.__struct_fields__,
    "pack": rows.Pack.__struct_fields__,
    "session": rows.Session.__struct_fields__,
    "token": rows.Token.__struct_fields__,
    "limits": commands.Limits.__struct_fields__,
    "subscription": subscriptions.Subscription.__struct_fields__,
    "ended claims": subscriptions.EndedClaims.__struct_fields__,
    "subscription key": subscriptions.Key.__struct_fields__,
    "chunk": packs.Chunk.__struct_fields__,
}
_REF_FIELDS = packs.SliceRef.__struct_fields__
_CHUNK_FIELDS = packs.Chunk.__struct_fields__

decode, encode = msgspec.msgpack.decode, msgspec.msgpack.encode


def _edited(
    random: Random, value: Any, names: tuple[str, ...], first: int = 0
) -> tuple[str, str, Any]:
    """A value with one place in it changed: the name of its field, what was done, and the value."""
    path = random.choice([path for path in leaves.places(value) if path and path[0] >= first])
    at = path[0] - first
    name = names[at] if at < len(names) else f"element {at}"
    how, found = leaves.changed(random, leaves.at(value, path))
    inside = f" at {'.'.join(map(str, path[1:]))}" if path[1:] else ""
    return name, f"{how}{inside}", leaves.with_changed(value, path, found)


# -- the log -----------------------------------------------------------------------------------


def _an_entry(site: Site) -> Entry:
    return site.random.choice(site.folder.log())


def _when(site: Site, index: int) -> str:
    """Whether a state reaches an entry, or the replay begins after it."""
    states = [site.folder.manifest(name).of.index for name in site.folder.manifests()]
    if site.grown.is_cut and index <= states[0]:
        return "before-states"
    return "reached" if index <= states[-1] else "after-states"


def _seal(site: Site, entry: Entry) -> str:
    """Put an entry in the place of the one with its index, and make good what depends on it."""
    folder, how = site.folder, site.random.choice(("all", "all", "all", "segment", "crc"))
    if how == "all":
        log_forgery.forge_log(folder, {entry.index: entry})
        return f"recomputed-{_when(site, entry.index)}{signing.forge_heads(site, entry.index)}"
    name = folder.segment_of(entry.index)
    is_last = name == folder.segments()[-1]
    entries = [entry if one.index == entry.index else one for one in folder.entries(name)]
    chains = log_forgery.chains_of(folder, name) if how == "crc" else None
    previous = log_forgery.previous_of(folder, name)
    tree = log_forgery.tree_before(folder, name)
    made = log_forgery.sealed(folder, previous, entries, chains, tree)
    log_forgery.put_segment(folder, name, made)
    return "chain-kept" if how == "crc" else f"to-its-segments-end{'-last' * is_last}"


@change("element")
def command(site: Site) -> str:
    """A field of a command."""
    random = site.random
    every = [one for one in site.folder.log() if one.kind == EntryKind.COMMANDS]
    entry = random.choice(every)
    batch = decode(entry.payload)
    if not batch[1]:
        raise Unfit
    at = random.randrange(len(batch[1]))
    told = batch[1][at]
    names = "tag", *_FIELDS_OF_COMMANDS[told[0]]
    name, how, batch[1][at] = _edited(random, told, names)
    where = _seal(site, replace(entry, payload=encode(batch)))
    return f"command/{told[0]}.{name}/{where}: {how}, entry {entry.index}, command {at}"


@change("element")
def batch(site: Site) -> str:
    """The stamp, the commands or the packages of a batch; or one element too many."""
    random = site.random
    every = [one for one in site.folder.log() if one.kind == EntryKind.COMMANDS]
    entry = random.choice(every)
    found = decode(entry.payload)
    at = random.randrange(len(found) + 1)
    if at == len(found):
        name, how, found = "more", "an element too many", [*found, 1]
    else:
        name = ("now_ms", "commands", "packages")[at]
        how, found[at] = leaves.changed(random, found[at])
    where = _seal(site, replace(entry, payload=encode(found)))
    return f"batch/{name}/{where}: {how}, entry {entry.index}"


@change("element")
def entry(site: Site) -> str:
    """The term, the kind or the whole payload of an entry."""
    random = site.random
    found = _an_entry(site)
    name = random.choice(("term", "kind", "payload", "of-another"))
    if name == "of-another":
        other = _an_entry(site)
        changed = replace(found, kind=other.kind, payload=other.payload)
    else:
        _, value = leaves.changed(random, getattr(found, name))
        if name == "kind":
            value %= 4
        changed = replace(found, **{name: value})
    return f"entry/{name}/{_seal(site, changed)}: entry {found.index}"


@change("element")
def bytes_that_keep_the_crc(site: Site) -> str:
    """Bytes of an append, chosen so that its chain value stays."""
    folder = site.folder
    said = site.random.choice(folder.find(lambda one: isinstance(one, Append | Create)))
    entry = next(one for one in folder.log() if one.index == said.index)
    begin = entry.payload.find(said.command.data)
    payload = None
    if begin >= 0 and said.command.data:
        end = begin + len(said.command.data)
        payload = log_forgery.keeping_crc(
            entry.payload, begin + site.random.randrange(len(said.command.data)), end
        )
    if payload is None:
        raise Unfit
    name = folder.segment_of(said.index)
    forged = replace(entry, payload=payload)
    entries = [forged if one.index == said.index else one for one in folder.entries(name)]
    previous, tree = log_forgery.previous_of(folder, name), log_forgery.tree_before(folder, name)
    made = log_forgery.sealed(folder, previous, entries, tree=tree)
    if site.random.random() < 0.5:
        log_forgery.put_segment(folder, name, made)
        return f"same-crc/in-place/{_when(site, said.index)}: entry {said.index}"
    folder.put(log_forgery.name_of(folder, made), made.content)
    return f"same-crc/in-a-second-segment: entry {said.index}"


@change("element")
def segment(site: Site) -> str:
    """Entries of a segment removed, repeated or in another order; its head's fields."""
    folder, random = site.folder, site.random
    name = random.choice(folder.segments())
    entries, previous = folder.entries(name), log_forgery.previous_of(folder, name)
    gone = "first-gone", "one-gone", "last-gone"
    how = random.choice((*gone, "one-twice", "swapped", "previous", "one-more-at-the-end"))
    at = random.randrange(len(entries))
    if how == "one-more-at-the-end":
        name = folder.segments()[-1]
        entries, previous = folder.entries(name), log_forgery.previous_of(folder, name)
        entries.append(random.choice(entries))
    elif how == "one-twice":
        entries.insert(at, entries[at])
        if at == len(entries) - 2 and name == folder.segments()[-1]:
            how = "one-more-at-the-end"
    elif how == "swapped":
        other = random.choice([each for each in range(len(entries)) if each != at] or [at])
        entries[at], entries[other] = entries[other], entries[at]
    elif how == "previous":
        field = random.choice(("index", "term", "chain", "time_ms"))
        value = leaves.changed(random, getattr(previous, field))[1] % 2**32
        previous = replace(previous, **{field: value})
        how = f"previous.{field}"
    else:
        at = {"first-gone": 0, "last-gone": len(entries) - 1}.get(how, at)
        previous = replace(previous, index=previous.index + (how == "first-gone"))
        del entries[at]
    if not entries:
        raise Unfit
    is_last = "-of-the-last" * (name == folder.segments()[-1] and "end" not in how)
    tree = log_forgery.tree_before(folder, name)
    made = log_forgery.sealed(folder, previous, entries, tree=tree)
    log_forgery.put_segment(folder, name, made)
    return f"segment/{how}{is_last}: {folder.local(name)[:46]}"


# -- packs -------------------------------------------------------------------------------------


def _put_pack(site: Site, old: str, content: bytes) -> str:
    """Put a pack in the place of another, under its own digest, and have states and the log name
    it, or not."""
    folder, random = site.folder, site.random
    parsed = parse(folder.local(old))
    assert isinstance(parsed, PackName)
    local = folder.local(old).replace(parsed.digest, digest_of(content))
    how = random.choice(("old-name", "own-name", "named-by-states", "named-by-all"))
    if how == "old-name":
        folder.objects[old] = content
        return how
    new = folder.replace(old, local, content)
    if how in ("named-by-states", "named-by-all"):
        folder.forge_states(lambda state: _rename_pack(state, old, new, len(content)))
    if how == "named-by-all":
        for said in folder.find(lambda one: getattr(one, "name", None) == old):
            found = replace(said.command, name=new, size=len(content))
            folder.forge_command(said.index, said.position, found)
    return how


def _rename_pack(state: Rows, old: str, new: str, size: int) -> None:
    for key, value in state.items():
        if key[:1] == b"k":
            row = decode(value)
            if row[0] == old:
                state[key] = encode([new, size, *row[2:]])


def _parts(content: bytes) -> tuple[list[bytes], list[Any]]:
    refs = packs.read_pack(content)[1]
    slices = [bytes(content[ref.offset : ref.offset + ref.length]) for ref in refs]
    return slices, decode(encode(refs))


def _packed(content: bytes, slices: list[bytes], refs: list[Any]) -> bytes:
    made = pack_of(slices, encode(refs))
    return content[: packs.HEAD_BYTES] + made[packs.HEAD_BYTES :]


@change("element")
def pack_footer(site: Site) -> str:
    """A field of a pack's footer."""
    name = site.one_of("packs")
    content = site.objects[name]
    slices, refs = _parts(content)
    at = site.random.randrange(len(refs))
    field, how, refs[at] = _edited(site.random, refs[at], _REF_FIELDS)
    where = _put_pack(site, name, _packed(content, slices, refs))
    return f"pack/footer.{field}/{where}: {how}, slice {at}"


@change("element")
def pack_slice(site: Site) -> str:
    """A field of a slice's records, its own checksum and the footer's made good."""
    name = site.one_of("packs")
    content = site.objects[name]
    slices, refs = _parts(content)
    at = site.random.randrange(len(refs))
    chunk = decode(slices[at][packs.SLICE_HEAD_BYTES :])
    field, how, chunk = _edited(site.random, chunk, _CHUNK_FIELDS)
    _reslice(slices, refs, at, refs[at][0], encode(chunk))
    where = _put_pack(site, name, _packed(content, slices, refs))
    return f"pack/slice.{field}/{where}: {how}, slice {at}"


@change("element")
def pack_slices(site: Site) -> str:
    """The stream of a slice; a slice removed, repeated, or in another place."""
    name = site.one_of("packs")
    content = site.objects[name]
    slices, refs = _parts(content)
    random = site.random
    at, other = random.randrange(len(refs)), random.randrange(len(refs))
    how = random.choice(("stream", "gone", "twice", "swapped"))
    if how == "stream":
        inside = slices[at][packs.SLICE_HEAD_BYTES :]
        _reslice(slices, refs, at, refs[other][0] + (at == other), inside)
    elif how == "gone":
        del slices[at], refs[at]
    elif how == "twice":
        slices.insert(at, slices[at])
        refs.insert(at, list(refs[at]))
    else:
        slices[at], slices[other] = slices[other], slices[at]
        refs[at], refs[other] = refs[other], refs[at]
    _place(slices, refs)
    where = _put_pack(site, name, _packed(content, slices, refs))
    return f"pack/{how}/{where}: slice {at}"


def _reslice(slices: list[bytes], refs: list[Any], at: int, stream: int, inside: bytes) -> None:
    rest = stream.to_bytes(8) + len(inside).to_bytes(4) + inside
    crc = crc32c(rest)
    slices[at] = crc.to_bytes(4) + rest
    refs[at][0], refs[at][7] = stream, crc
    _place(slices, refs)


def _place(slices: list[bytes], refs: list[Any]) -> None:
    """Make the footer's offsets and lengths good."""
    offset = packs.HEAD_BYTES
    for one, ref in zip(slices, refs, strict=True):
        ref[5], ref[6] = offset, len(one)
        offset += len(one)


# -- states ------------------------------------------------------------------------------------


@change("element")
def state_row(site: Site) -> str:
    """A field of a row's value, or of its key, in one state."""

    def edit(random: Random, state: Rows) -> str:
        key = _a_key(random, state)
        kind = rows.KINDS[chr(key[0])]
        value = state[key]
        if not value or random.random() < 0.15:
            del state[key]
            how, rest = leaves.changed(random, key[1:])
            state[key[:1] + rest] = value
            return f"row/{kind}.key", how  # type: ignore[return-value]
        if kind == "part":
            how, state[key] = leaves.changed(random, value)
            return f"row/{kind}.bytes", how  # type: ignore[return-value]
        field, how, found = _edited(random, decode(value), _FIELDS_OF_ROWS[kind])
        state[key] = encode(found)
        return f"row/{kind}.{field}", how  # type: ignore[return-value]

    return _edit_state(site, edit)


@change("element")
def state_rows(site: Site) -> str:
    """A row gone, one too many, or the value of another, in one state."""

    def edit(random: Random, state: Rows) -> str:
        key = _a_key(random, state)
        kind = rows.KINDS[chr(key[0])]
        how = random.choice(("gone", "another", "of-another", "unknown"))
        if how == "gone":
            del state[key]
        elif how == "another":
            state[key + b"x" if kind in ("stream", "bucket") else key[:-1] + b"\7"] = state[key]
        elif how == "unknown":
            state[b"z" + key] = state[key]
        else:
            alike = [each for each in state if each[:1] == key[:1]]
            state[key] = state[random.choice(alike)]
        return f"rows/{kind}-{how}", ""  # type: ignore[return-value]

    return _edit_state(site, edit)


def _a_key(random: Random, state: Rows) -> bytes:
    """A row; each kind is as likely."""
    kind = random.choice(sorted({key[:1] for key in state}))
    return random.choice([key for key in sorted(state) if key[:1] == kind])


def _edit_state(site: Site, edit: Callable[[Random, Rows], Any]) -> str:
    folder, random = site.folder, site.random
    manifest = random.choice([*folder.manifests(), folder.manifests()[-1]])
    age, index = site.age_of(manifest), folder.manifest(manifest).of.index
    told = ""

    def change_one(of: CheckpointOf, state: Rows) -> CheckpointOf:
        nonlocal told
        name, how = edit(random, state)
        told = f"{name}/{age}: {how}, state {index}"
        return of

    folder._forge_state(manifest, change_one)
    return told


@change("element")
def manifest(site: Site) -> str:
    """A field of a manifest."""
    folder, random = site.folder, site.random
    old = random.choice(folder.manifests())
    age = site.age_of(old)
    found = decode(encode(folder.manifest(old)))
    part = random.choice((0, 0, 1))
    fields = CheckpointOf.__struct_fields__ if part == 0 else ("piece",) * 9
    name, how, found[part] = _edited(random, found[part], fields)
    is_named = random.random() < 0.5
    content = _sealed_list(folder.objects[old], found)
    parsed = ManifestName.parse(folder.local(old))
    assert parsed is not None
    local = str(replace(parsed, digest=digest_of(content)))
    if is_named:
        try:
            of = msgspec.convert(found[0], CheckpointOf, strict=False)
            local = str(ManifestName(of.group_id, of.index, of.snapshot_id, digest_of(content)))
        except (msgspec.ValidationError, ValueError, OverflowError):
            raise Unfit from None
    folder.replace(old, local, content)
    what = "of" if part == 0 else "pieces"
    return f"manifest/{what}.{name}/{age}{'-renamed' * is_named}: {how}"


@change("element")
def state_moved(site: Site) -> str:
    """A state under another entry's place, pieces and all; or its pieces in other sizes."""
    folder, random = site.folder, site.random
    old = random.choice(folder.manifests())
    age = site.age_of(old)
    of, state = folder.manifest(old).of, folder.rows(old)
    field = random.choice(CheckpointOf.__struct_fields__[2:])
    how, value = leaves.changed(random, getattr(of, field))
    for name in (*folder.pieces(old), old):
        del folder.objects[name]
    put_state(folder, replace(of, **{field: value}), state)
    return f"state/{field}/{age}: {how}"


@change("element")
def end(site: Site) -> str:
    """A field of a pointer to the archive's end."""
    folder, random = site.folder, site.random
    old = random.choice(folder.names("ends"))
    is_last = old == folder.names("ends")[-1]
    found = decode(folder.objects[old][18:])
    path = random.choice([path for path in leaves.places(found) if path])
    how, value = leaves.changed(random, leaves.at(found, path))
    content = _sealed_list(folder.objects[old], leaves.with_changed(found, path, value))
    parsed = EndName.parse(folder.local(old))
    assert parsed is not None
    named = replace(parsed, digest=digest_of(content))
    if len(path) == 2 and isinstance(value, int):
        field = {"index": "log_index", "term": "term", "chain": "chain"}.get(str(path[1]))
        if field is not None:
            named = replace(named, **{field: value % 2**32})
    folder.replace(old, str(named), content)
    name = ".".join(map(str, path))
    return f"end/{name}/{'newest' if is_last else 'older'}: {how}"


def _sealed_list(content: bytes, value: Any) -> bytes:
    """A manifest or a pointer of another value, its head made good."""
    inside = encode(value)
    start = bytearray(content[:18])
    pack_into(">II", start, 6, len(inside), crc32c(inside))
    start[14:18] = pack(">I", crc32c(bytes(start[:14])))
    return bytes(start) + inside
