"""Views of clusters and records of operations, for the tests of what follows from them."""

from __future__ import annotations

from msgspec.structs import replace

from streamd.streams.operations import changes
from streamd.streams.operations.model import Arguments, Kind, Operation
from streamd.streams.operations.planning import Member, View, plan

NOW_MS = 1_000_000


def cluster(*ids: int, leader: int = 1, **more: object) -> View:
    """A cluster of voters that are well, each in its first process."""
    members = tuple(Member(one, incarnation=100 + one, release="1.0", log_format=6) for one in ids)
    view = View(NOW_MS, leader, members, level=6, connected=frozenset(ids))
    return replace(view, **more)


def with_member(view: View, node_id: int, **more: object) -> View:
    """The view with a member changed."""
    members = tuple(replace(one, **more) if one.node_id == node_id else one for one in view.members)
    return replace(view, members=members)


def begun(kind: Kind, view: View, **arguments: object) -> Operation:
    """An operation just begun."""
    asked = Arguments(**arguments)  # type: ignore[arg-type]
    return changes.begin(1, kind, asked, plan(kind, asked, view), by="ops", now_ms=view.now_ms)
