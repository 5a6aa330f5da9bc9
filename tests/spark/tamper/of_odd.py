"""Things in a directory that no server puts there, under an object's name or one of their own."""

from __future__ import annotations

import os
from functools import cache
from struct import pack

import zstandard
from crc32c import crc32c

from streamd.objectstore.names import digest_of
from streamd_audit import segments
from streamd_audit.framing import zstd_frame_size
from tests.spark.resealing import PIECE_HEAD, good_head
from tests.spark.tamper.changes import KINDS, Site, change

_BOMB_MB = 96


def _loop(path: bytes) -> None:
    os.symlink(os.path.basename(path), path)


def _dangling(path: bytes) -> None:
    os.symlink(b"nowhere", path)


def _to_parent(path: bytes) -> None:
    os.symlink(b"..", path)


def _folder(path: bytes) -> None:
    os.mkdir(path)


def _full_folder(path: bytes) -> None:
    os.mkdir(path)
    with open(os.path.join(path, b"inside"), "wb") as file:
        file.write(b"x")


_MAKERS = {
    "fifo": os.mkfifo,
    "loop": _loop,
    "dangling-link": _dangling,
    "link-to-its-folder": _to_parent,
    "folder": _folder,
    "full-folder": _full_folder,
}


@change("odd")
def in_place(site: Site) -> str:
    """Something else under an object's name."""
    name = site.one_of(*KINDS)
    kind = name.split("/")[1]
    how = site.random.choice(sorted(_MAKERS))
    del site.objects[name]
    site.odd[name.encode()] = _MAKERS[how]
    return f"{kind}/{how}: {site.folder.local(name)[:60]}"


@change("odd")
def beside(site: Site) -> str:
    """Something odd among the objects, or a name that cannot be text."""
    name = site.one_of(*KINDS)
    folder = name.rpartition("/")[0].encode()
    how = site.random.choice((*sorted(set(_MAKERS) - {"folder"}), "name-of-no-text"))
    own = b"/od\xff\xfed" if how == "name-of-no-text" else b"/odd"
    site.odd[folder + own] = _MAKERS.get(how, _stray)
    return f"beside/{how}: {folder.decode()[37:]}"


def _stray(path: bytes) -> None:
    with open(path, "wb") as file:
        file.write(b"x")


@change("odd")
def bomb(site: Site) -> str:
    """A segment or a piece that unpacks to far more than it should, checksums made good."""
    kind = site.random.choice(("log", "pieces"))
    name = site.one_of(kind)
    content, zeros = site.objects[name], _zeros()
    if kind == "log":
        frame = zstd_frame_size(content[segments.HEAD_BYTES :])
        body = zeros + content[segments.HEAD_BYTES + frame :]
        sizes = pack(">QQI", _BOMB_MB << 20, len(body), crc32c(body))
        start = content[: segments.HEAD_BYTES - 24] + sizes + bytes(4)
        made = good_head(start, segments.HEAD_BYTES) + body
    else:
        sizes = pack(">IIII", _BOMB_MB << 20, 0, len(zeros), crc32c(zeros))
        made = good_head(content[:22] + sizes + bytes(4), PIECE_HEAD) + zeros
    local = site.folder.local(name)
    old = local.rpartition("-")[2].partition(".")[0]
    site.folder.replace(name, local.replace(old, digest_of(made)), made)
    return f"{kind}/bomb: {local[:60]}"


@cache
def _zeros() -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj(size=_BOMB_MB << 20)
    parts = [compressor.compress(bytes(1 << 20)) for _ in range(_BOMB_MB)]
    return b"".join([*parts, compressor.flush()])
