"""Changes to the bytes of an object, to whole objects, and to sets of objects."""

from __future__ import annotations

from streamd.objectstore.segments import read_entries
from streamd_audit.names import parse
from streamd_audit.watermark import Watermark
from tests.spark.forging import Folder, digest_of
from tests.spark.tamper.changes import KINDS, Site, Unfit, change

# Kinds of objects whose names have an entry, and the words for them in the names of changes.
_POINTERS = (
    ("ends", "ends"), ("heads", "heads"), ("snapshots", "states"), ("pieces", "states"),
)  # fmt: skip


def _short(site: Site, name: str) -> str:
    return site.folder.local(name)[:60]


def _newest(site: Site, name: str) -> str:
    """The kind of an object, and whether it is the last of that kind, or the first after what
    retention has removed."""
    kind = site.folder.local(name).partition("/")[0]
    names = site.folder.names(kind)
    if name == names[-1]:
        return f"{kind}-last"
    return f"{kind}{'-oldest' * (site.grown.is_cut and name == names[0])}"


def _fits(site: Site) -> str:
    """Whether no pointer, state or pack is from after the log's end."""
    folder = site.folder
    last = max((entry.index for entry in folder.log()), default=0)
    named = [
        folder.local(name) for kind in ("ends", "heads", "snapshots") for name in folder.names(kind)
    ]
    before = Folder(site.grown.objects, folder.cluster_id, folder.group_id)
    made = {getattr(said.command, "name", ""): said.index for said in before.commands()}
    indexes = [int(name.split("/")[2].partition("-")[0], 16) for name in named]
    indexes += (made.get(name, 0) for name in folder.packs())
    return "" if max(indexes, default=0) > last else "-all-of-it"


# -- bytes -------------------------------------------------------------------------------------


def _with_bytes(site: Site, how: str, name: str, content: bytes, where: str) -> str:
    """Put an object's other bytes under its name, or under one with their digest."""
    is_named = site.random.random() < 0.4
    kind = _newest(site, name)
    if is_named:
        old = getattr(parse(site.folder.local(name)), "digest", "")
        site.folder.replace(name, site.folder.local(name).replace(old, digest_of(content)), content)
    else:
        site.objects[name] = content
    return f"{kind}/{how}{'-renamed' * is_named}: {where}, {site.folder.local(name)[:60]}"


@change("bytes")
def flipped(site: Site) -> str:
    """One bit."""
    name = site.one_of(*KINDS)
    content = bytearray(site.objects[name])
    at = site.random.randrange(len(content))
    content[at] ^= 1 << site.random.randrange(8)
    return _with_bytes(site, "flipped", name, bytes(content), f"byte {at}")


@change("bytes")
def cut(site: Site) -> str:
    name = site.one_of(*KINDS)
    size = site.random.randrange(len(site.objects[name]))
    return _with_bytes(site, "cut", name, site.objects[name][:size], f"at {size}")


@change("bytes")
def extended(site: Site) -> str:
    name = site.one_of(*KINDS)
    more = site.random.randbytes(site.random.choice((1, 4, 100)))
    return _with_bytes(site, "extended", name, site.objects[name] + more, f"{len(more)} bytes")


@change("bytes")
def zeroed(site: Site) -> str:
    """Some bytes in a row."""
    name = site.one_of(*KINDS)
    content = bytearray(site.objects[name])
    at = site.random.randrange(len(content))
    size = site.random.choice((1, 8, 512))
    content[at : at + size] = bytes(len(content[at : at + size]))
    return _with_bytes(site, "zeroed", name, bytes(content), f"byte {at}, {size} bytes")


@change("bytes")
def a_part_elsewhere(site: Site) -> str:
    """Bytes of one place copied over another of the same object."""
    name = site.one_of(*KINDS)
    content = bytearray(site.objects[name])
    size = site.random.randrange(1, len(content))
    at, to = (site.random.randrange(len(content) - size + 1) for _ in range(2))
    content[to : to + size] = content[at : at + size]
    return _with_bytes(site, "moved", name, bytes(content), f"{size} bytes from {at} to {to}")


# -- objects -----------------------------------------------------------------------------------


@change("object")
def removed(site: Site) -> str:
    name = site.one_of(*KINDS)
    kind = _newest(site, name)
    del site.objects[name]
    return f"{kind}/removed: {_short(site, name)}"


@change("object")
def swapped(site: Site) -> str:
    """Two objects of a kind with each other's names."""
    kind = site.random.choice(KINDS)
    names = site.folder.names(kind)
    if len(names) < 2:
        raise Unfit
    one, other = site.random.sample(names, 2)
    site.objects[one], site.objects[other] = site.objects[other], site.objects[one]
    return f"{kind}/swapped: {_short(site, one)}"


@change("object")
def copied_over(site: Site) -> str:
    """The content of another object of the same kind, of this cluster or another."""
    random = site.random
    kind = random.choice(KINDS)
    name = random.choice(site.folder.names(kind))
    whose = random.choice(("own", "foreign"))
    objects = site.objects if whose == "own" else site.foreign.objects
    others = [each for each in sorted(objects) if f"/{kind}/" in each and each != name]
    if not others:
        raise Unfit
    content = objects[random.choice(others)]
    last = _newest(site, name)
    is_named = random.random() < 0.5
    if is_named:
        old = getattr(parse(site.folder.local(name)), "digest", "")
        site.folder.replace(name, site.folder.local(name).replace(old, digest_of(content)), content)
    else:
        site.objects[name] = content
    return f"{last}/replaced-by-{whose}{'-renamed' * is_named}: {_short(site, name)}"


@change("object")
def earlier(site: Site) -> str:
    """An object that retention or a merge has removed comes back, or all that did."""
    random = site.random
    gone: dict[str, bytes] = {}
    for moment in site.grown.moments:
        gone |= {name: content for name, content in moment.items() if name not in site.objects}
    if not gone:
        raise Unfit
    kind = random.choice(sorted({site.folder.local(name).partition("/")[0] for name in gone}))
    names = [name for name in sorted(gone) if f"/{kind}/" in name]
    name = random.choice(names)
    site.objects[name] = gone[name]
    return f"{kind}/back: {_short(site, name)}"


@change("object")
def foreign(site: Site) -> str:
    """An object of another cluster, in this one's folder."""
    name = site.random.choice(sorted(site.foreign.objects))
    local = name.partition("/")[2]
    if site.folder.put(local, site.foreign.objects[name]) in site.grown.objects:
        raise Unfit
    return f"{local.partition('/')[0]}/foreign: {local[:60]}"


@change("object")
def renumbered(site: Site) -> str:
    """A copy of an object under a name with other numbers, or the object itself."""
    random = site.random
    name = site.one_of(*KINDS)
    local, kind = site.folder.local(name), _newest(site, name)
    digits = [at for at, one in enumerate(local[: local.rindex("-")]) if one in "0123456789"]
    at = random.choice(digits)
    other = local[:at] + random.choice("0123456789") + local[at + 1 :]
    if other == local:
        raise Unfit
    content = site.objects[name]
    how = random.choice(("copied", "renamed"))
    if how == "renamed":
        del site.objects[name]
    site.folder.put(other, content)
    return f"{kind}/{how}-to-other-numbers: {local[:60]}, digit {at}"


@change("object")
def strange(site: Site) -> str:
    """An object that no server writes."""
    random = site.random
    name = random.choice(("log/notes.txt", "stray", "packs/00000000/x.pack", "new/folder/a"))
    site.folder.put(name, random.randbytes(9))
    return f"stray/added: {name}"


# -- sets --------------------------------------------------------------------------------------


@change("set")
def all_back(site: Site) -> str:
    """The whole folder as it was, with a watermark of now or without one."""
    moment = site.random.choice(site.grown.moments)
    if site.random.random() < 0.5:
        site.mark = _mark(site)
    site.folder.objects = dict(moment)
    told = "-with-a-watermark" * (site.mark is not None)
    return f"all/as-of-earlier{told}: of {len(moment)} objects"


def _mark(site: Site) -> Watermark:
    """What an audit of the store has left."""
    _, last = [*read_entries(site.objects[site.folder.segments()[-1]])][-1]
    return Watermark(site.folder.cluster_id, last.index, last.term, last.chain)


@change("set")
def kinds_back(site: Site) -> str:
    """Some kinds of objects as they were."""
    random = site.random
    groups = ("pieces", "snapshots"), ("log",), ("packs",), ("ends",), ("snapshots",), ("heads",)
    also = ("pieces", "snapshots", "packs"), ("log", "packs"), ("log", "ends"), ("ends", "heads")
    pointers = ("log", "ends", "heads"), ("log", "packs", "ends", "heads")
    most = ("log", "ends", "heads", "pieces", "snapshots"), ("log", "ends", "pieces", "snapshots")
    kinds = random.choice((*groups, *also, *pointers, *most))
    moment = random.choice(site.grown.moments)
    for kind in kinds:
        for name in site.folder.names(kind):
            del site.objects[name]
    for name, content in moment.items():
        if site.folder.local(name).partition("/")[0] in kinds:
            site.objects[name] = content
    return f"{'+'.join(kinds)}/as-of-earlier{_fits(site)}: of {len(moment)} objects"


@change("set")
def kind_gone(site: Site) -> str:
    """All objects of a kind, or all but the first few."""
    groups = ("log",), ("packs",), ("ends",), ("pieces", "snapshots"), ("snapshots",), ("heads",)
    also = ("log", "ends"), ("ends", "heads"), ("log", "ends", "heads")
    kinds = site.random.choice((*groups, *also))
    for kind in kinds:
        for name in site.folder.names(kind):
            del site.objects[name]
    return f"{'+'.join(kinds)}/gone"


@change("set")
def end_cut(site: Site) -> str:
    """The last segments, and what points past them: pointers, or states, or both."""
    random, folder = site.random, site.folder
    segments = folder.segments()
    count = random.randrange(1, min(4, len(segments)))
    first = int(folder.local(segments[-count]).split("/")[2].partition("-")[0], 16)
    pointers = random.choice(("ends", "ends+heads", "ends+heads", "heads"))
    more = random.choice(("", "+states", "+states+packs"))
    what = random.choice(("log", f"log+{pointers}{more}", f"log+{pointers}{more}"))
    for name in segments[-count:]:
        del folder.objects[name]
    later = [
        name
        for kind, word in _POINTERS
        if word in what.split("+")
        for name in folder.names(kind)
        if int(folder.local(name).split("/")[2].partition("-")[0], 16) >= first
    ]
    for name in later:
        del folder.objects[name]
    if "packs" in what:
        made = {said.command.name for said in folder.find(lambda one: hasattr(one, "slices"))}
        for name in folder.packs():
            if name not in made:
                del folder.objects[name]
    return f"{what}/end-cut{_fits(site)}: {count} segments"


@change("set")
def newest_state_gone(site: Site) -> str:
    """Some states, with their pieces or without."""
    folder, random = site.folder, site.random
    chosen = random.sample(folder.manifests(), random.randrange(1, len(folder.manifests())))
    which = "older"
    if site.grown.is_cut and folder.manifests()[0] in chosen:
        which = "with-the-oldest"
    elif folder.manifests()[-1] in chosen:
        which = "with-the-newest"
    with_pieces = random.random() < 0.7
    for name in chosen:
        if with_pieces:
            for piece in folder.pieces(name):
                del folder.objects[piece]
        del folder.objects[name]
    what = "states" if with_pieces else "manifests"
    return f"{what}/some-{which}-gone: {len(chosen)}"
