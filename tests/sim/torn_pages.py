"""What a loss of power may leave of a file whose end was not synced."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from random import Random

PAGE_BYTES = 4096


class Tear(Enum):
    """What is left of the unsynced pages."""

    NOTHING = "none of them"
    ALL = "all of them"
    PREFIX = "the file cut at any byte"
    HOLES = "any of them, zeros for the others"
    ZEROS = "zeros from one page on"
    STALE = "any of them, an old block's bytes for the others"


def torn(
    synced: bytes,
    written: bytes,
    random: Random,
    old_blocks: Sequence[bytes] = (),
    tear: Tear | None = None,
    page_bytes: int = PAGE_BYTES,
) -> bytes:
    """One of the contents that a file may have which was `synced`, and then `written` to."""
    tear = tear or random.choice([*Tear])
    if synced == written or tear is Tear.NOTHING:
        return synced
    if tear is Tear.ALL:
        return written
    if len(synced) == len(written):
        return _partly(synced, written, random, tear, page_bytes)
    if not written.startswith(synced):
        return written
    if tear is Tear.PREFIX:
        return written[: random.randint(len(synced), len(written))]
    content = pages(written, page_bytes)
    first = len(synced) // page_bytes
    lost = [page for page in range(first, len(content)) if random.random() < 0.5]
    if tear is Tear.ZEROS:
        lost = [*range(random.randrange(first, len(content)), len(content))]
    for page in lost:
        size = len(content[page])
        kept = synced[page * page_bytes :][:size]
        old = bytes(page_bytes)
        if tear is Tear.STALE and old_blocks and not kept:
            old = random.choice(old_blocks) + old
        content[page] = kept + old[: size - len(kept)]
    return b"".join(content)


def _partly(synced: bytes, written: bytes, random: Random, tear: Tear, page_bytes: int) -> bytes:
    """The same for bytes that took the place of others: each page has either."""
    old, new = pages(synced, page_bytes), pages(written, page_bytes)
    kept = [random.random() < 0.5 for _ in new]
    if tear in (Tear.PREFIX, Tear.ZEROS):
        end = random.randint(0, len(new))
        kept = [number < end for number in range(len(new))]
    return b"".join(new[at] if kept[at] else old[at] for at in range(len(new)))


def pages(content: bytes, page_bytes: int = PAGE_BYTES) -> list[bytes]:
    return [content[at : at + page_bytes] for at in range(0, len(content), page_bytes)]
