"""The data directory: one process at a time, one node for ever."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from uuid import uuid4

import msgspec

from streamd.storage.errors import DataDirInUse, IdentityMismatch, StorageFailed

FORMAT_VERSION = 1


class Identity(msgspec.Struct, frozen=True):
    """Whose data this is. A node id is never used for two data directories of a cluster."""

    node_id: int
    cluster_id: str
    format_version: int = FORMAT_VERSION


class DataDir:
    """A locked data directory and the places in it. Close it after everything else."""

    def __init__(self, path: Path, lock: int, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self.log = path / "log"
        self.state = path / "state"
        self.floor = path / "floor"
        self._lock = lock

    @classmethod
    def open(cls, path: Path, node_id: int) -> DataDir:
        """Lock the directory, making it on first use. Blocks.

        Raises `DataDirInUse`, `IdentityMismatch`, or `StorageFailed`.
        """
        try:
            path = path.absolute()
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
            try:
                return cls(path, lock, _identify(path, node_id))
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise StorageFailed(f"the data directory {path} cannot be used: {error}") from error

    def close(self) -> None:
        os.close(self._lock)


def _lock(path: Path) -> int:
    lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        os.close(lock)
        raise DataDirInUse(
            f"the data directory {path} is in use by another streamd"
            + (f" (process {holder})" if holder else "")
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _identify(path: Path, node_id: int) -> Identity:
    file = path / "identity.json"
    if not file.exists():
        identity = Identity(node_id, str(uuid4()))
        write_durably(file, msgspec.json.encode(identity))
        return identity
    try:
        identity = msgspec.json.decode(file.read_bytes(), type=Identity)
    except msgspec.DecodeError as error:
        raise IdentityMismatch(f"{file} cannot be read: {error}") from error
    if identity.format_version != FORMAT_VERSION:
        raise IdentityMismatch(
            f"{path} has format {identity.format_version}; this streamd reads {FORMAT_VERSION}"
        )
    if identity.node_id != node_id:
        raise IdentityMismatch(
            f"{path} belongs to node {identity.node_id}, not {node_id}: "
            "set server.node_id to that, or name another data directory"
        )
    return identity


def write_durably(file: Path, content: bytes) -> None:
    """Replace a file so that after any crash it has its old content or its new, whole."""
    fresh = file.with_name(file.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, content)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(fresh, file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
