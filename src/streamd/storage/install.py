"""A received Raft snapshot replaces state and log, in steps that can each be repeated.

1. The marker file says which snapshot is being installed. From here on the only way is forward.
2. The state moves aside, and the received rows take its place.
3. The log becomes empty, to continue after the snapshot.
4. The marker is removed, then the old state.

After a crash at any point `recover_install` takes the remaining steps.
"""

from __future__ import annotations

import shutil

import structlog

from streamd.process.cures import with_cure
from streamd.raft.chain import ChainPosition
from streamd.storage.data_dir import DataDir
from streamd.storage.errors import StorageFailed
from streamd.storage.files import (
    is_there,
    read_checked,
    remove_durably,
    rename_durably,
    write_checked,
)
from streamd.storage.log_storage import LogStorage, reset_log
from streamd.storage.raft_snapshots import SnapshotMeta
from streamd.storage.state_store import StateStore

log = structlog.get_logger("streamd.storage")


def install(
    data_dir: DataDir, log_store: LogStorage, state: StateStore, meta: SnapshotMeta
) -> None:
    """Install what `SnapshotSink.finish` left, into the open stores. Blocks.

    Call it on the log's thread, with no flush of the state under way, and not for a snapshot whose
    last entry the log already `holds`: the entries after it may have been acknowledged and must
    stay. After an error the process must end; the next start completes the installation.
    Raises `StorageError`.
    """
    assert meta.index >= log_store.first_index, meta
    assert not log_store.holds(meta.index, meta.term), meta
    assert is_there(data_dir.incoming)
    try:
        write_checked(data_dir.install_marker, meta)
        state.swap(lambda: _swap_directories(data_dir))
        log_store.reset(ChainPosition(meta.index, meta.term, meta.chain))
        _clean_up(data_dir)
    except OSError as error:
        raise StorageFailed(
            f"{data_dir.path}: the snapshot is not installed: {with_cure(error)}"
        ) from error
    log.info("a Raft snapshot was installed", index=meta.index, term=meta.term)


def recover_install(data_dir: DataDir) -> SnapshotMeta | None:
    """Complete an installation that a crash cut short, before the stores are opened. Blocks.

    Returns the snapshot installed, None if there was nothing to do. Raises `StorageError`.
    """
    try:
        meta = read_checked(data_dir.install_marker, SnapshotMeta)
        if meta is not None:
            _swap_directories(data_dir)
            reset_log(
                data_dir.log, data_dir.floor, index=meta.index, term=meta.term, chain=meta.chain
            )
            log.info("the snapshot's installation was completed", index=meta.index, term=meta.term)
        if meta is not None or is_there(data_dir.state_old):
            _clean_up(data_dir)
    except OSError as error:
        raise StorageFailed(
            f"{data_dir.path}: the snapshot is not installed: {with_cure(error)}"
        ) from error
    return meta


def _swap_directories(data_dir: DataDir) -> None:
    """As long as there are received rows, the state is not yet in place."""
    if not is_there(data_dir.incoming):
        return
    if is_there(data_dir.state):
        if is_there(data_dir.state_old):
            shutil.rmtree(data_dir.state_old)
        rename_durably(data_dir.state, data_dir.state_old)
    rename_durably(data_dir.incoming, data_dir.state)


def _clean_up(data_dir: DataDir) -> None:
    remove_durably(data_dir.install_marker)
    if is_there(data_dir.state_old):
        shutil.rmtree(data_dir.state_old)
