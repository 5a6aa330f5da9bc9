"""Checks by trial whether an object store does what a cold store needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamd.objectstore.errors import ColdError, ColdRefused, ObjectCorrupt
from streamd.objectstore.names import CHECKS
from streamd.objectstore.objects import ObjectStore


def check_object_store(store: ObjectStore, unique: str, begun: list[str] | None = None) -> None:
    """Write, read, list and delete a small object. Blocks.

    `unique` names this check among those of all nodes; `begun` collects the steps as they begin, so
    that a caller that stops waiting can name the step. Raises the `ColdError` of the step that
    failed and names the step: `ColdUnavailable` may pass, `ColdRefused` will not.
    """
    begun = [] if begun is None else begun
    name = f"{CHECKS}{unique}"
    content = f"streamd checks whether it can use this place: {unique}".encode()
    with _step(store, begun, "written"):
        store.put(name, content)
    try:
        with _step(store, begun, "read"):
            if store.get(name, 0, len(content)) != content:
                raise ObjectCorrupt("the store returned different bytes than were written")
            if store.get(name, 8, 6) != content[8:14]:
                raise ColdRefused("the store ignores the Range header")
        with _step(store, begun, "listed"):
            if name not in [found.name for found in store.page(name)]:
                raise ColdRefused("the store does not list the object that was written")
    finally:
        with _step(store, begun, "deleted from"):
            store.delete([name])


@contextmanager
def _step(store: ObjectStore, begun: list[str], step: str) -> Iterator[None]:
    begun.append(step)
    try:
        yield
    except ColdError as error:
        raise type(error)(f"{store.place} cannot be {step}: {error}") from error
