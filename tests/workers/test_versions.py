"""The page of counts that ends kept answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamd.streams.commands import (
    Append,
    Command,
    Create,
    Delete,
    DeleteBucket,
    DropSlices,
    PublishSnapshot,
    Sweep,
    Touch,
)
from streamd.streams.model import Settings
from streamd.workers.versions import Versions, VersionsView

KEY = b"bucket\0stream"
OTHER = b"bucket\0other"


@contextmanager
def page() -> Iterator[tuple[Versions, VersionsView]]:
    versions = Versions()
    try:
        yield versions, VersionsView(os.dup(versions.fileno))
    finally:
        versions.close()


@pytest.mark.parametrize(
    "command",
    [
        Append(KEY, "text/plain", b"x", [1]),
        Append(KEY, "", b"", [], close=True),
        Create(KEY, Settings()),
        Delete(KEY),
    ],
)
def test_a_command_ends_the_answers_about_its_stream_and_no_others(command: Command) -> None:
    with page() as (versions, view):
        answer, other = versions.stamp(KEY), versions.stamp(OTHER)
        assert view.holds(answer)
        versions.applied([command])
        assert not view.holds(answer)
        assert view.holds(other)
        assert view.holds(versions.stamp(KEY)), "an answer made afterwards is kept again"


@pytest.mark.parametrize(
    "command",
    [
        Sweep([OTHER]),
        Touch([]),
        DeleteBucket(b"other"),
        PublishSnapshot(OTHER, (0, 0), "text/plain", 0, b""),
        DropSlices(1, []),
    ],
)
def test_a_command_of_any_other_kind_ends_all_answers(command: Command) -> None:
    """What it changes is not judged here."""
    with page() as (versions, view):
        answer = versions.stamp(KEY)
        versions.applied([command])
        assert not view.holds(answer)


def test_workers_cannot_write_to_the_page() -> None:
    with page() as (_, view), pytest.raises(TypeError):
        view._counts[0] = 1
