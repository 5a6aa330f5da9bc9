"""An interrupted restore can be resumed, but only with the same request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamd.backup import restore as restore_module
from streamd.backup.base import Choice, RestoreRefused
from streamd.backup.replay import Replay
from streamd.group.stores import Stores
from streamd.objectstore.errors import ColdUnavailable
from streamd.storage.errors import RestoreUnfinished
from streamd.storage.incoming import SnapshotSink
from tests.backup.history import History
from tests.support.archived import restored, state_in
from tests.support.nodes import read_all, running_node


class Cut(Exception):
    """The process ends here."""


def _cutting(after: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wrap calls: the first `after` calls work, then each raises."""
    left = [after]

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(*args: Any, **kwargs: Any) -> Any:
            if left[0] <= 0:
                raise Cut
            left[0] -= 1
            return call(*args, **kwargs)

        return maybe

    return wrap


async def test_a_restore_interrupted_anywhere_can_be_resumed(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, _ = history.cold()
    new = tmp_path / "new"
    steps = 0
    for after in range(200):
        wrap = _cutting(after % 5)
        with monkeypatch.context() as patched:
            for owner, name in (
                (SnapshotSink, "take"),
                (SnapshotSink, "finish"),
                (Replay, "apply"),
                (Replay, "_flush"),
            ):
                patched.setattr(owner, name, wrap(getattr(owner, name)))
            for name in ("write_checked", "recover_install", "become_another", "remove_durably"):
                patched.setattr(restore_module, name, wrap(getattr(restore_module, name)))
            try:
                done = await restored(cold, new, fencing=False)
                break
            except* Cut:
                steps += 1
        if (new / "restore").exists():
            with pytest.raises(RestoreUnfinished):
                Stores.open(new, 1)
    assert steps > 5
    assert done.last_index == history.archived_index
    assert state_in(new) == history.as_of(done.last_index)
    async with running_node(new) as node:
        assert (await read_all(node, "a")).startswith(b"minute 0;")


async def test_an_outage_only_interrupts_a_restore(tmp_path: Path, history: History) -> None:
    cold, store = history.cold()
    new = tmp_path / "new"
    patient, get = 0, store.get
    left = [0]

    def impatient(name: str, offset: int, length: int) -> bytes:
        left[0] -= 1
        if left[0] < 0:
            raise ColdUnavailable("away")
        return get(name, offset, length)

    store.get = impatient  # type: ignore[method-assign]
    while True:
        left[0] = patient
        try:
            done = await restored(cold, new, fencing=False)
            break
        except* ColdUnavailable:
            patient += 6
    assert patient
    assert state_in(new) == history.as_of(done.last_index)


async def test_a_restore_does_not_continue_in_the_directory_of_another(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, _ = history.cold()
    last = history.archived_index

    def cut(*_: object) -> None:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(Replay, "apply", cut)
        with pytest.raises(Cut):
            await restored(cold, tmp_path / "new", Choice(index=last - 1), fencing=False)
    with pytest.raises(RestoreRefused, match="unfinished restore"):
        await restored(cold, tmp_path / "new", Choice(index=last), fencing=False)
    done = await restored(cold, tmp_path / "new", Choice(index=last - 1), fencing=False)
    assert done.last_index == last - 1


async def test_a_finished_restore_may_be_run_again(tmp_path: Path, history: History) -> None:
    cold, _ = history.cold()
    done = await restored(cold, tmp_path / "new", Choice(index=40), fencing=False)
    assert await restored(cold, tmp_path / "new", Choice(index=40), fencing=False) == done
    with pytest.raises(RestoreRefused, match="finished"):
        await restored(cold, tmp_path / "new", Choice(index=41), fencing=False)
