"""The data directory: one process at a time, one node for ever."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from streamd.process.cures import with_cure
from streamd.storage.errors import DataDirInUse, IdentityMismatch, StorageFailed
from streamd.storage.files import is_there, rename_durably, write_durably
from streamd.streams.content import UNDECODABLE

# 2: the log has a journal. An earlier release would not miss what only the journal holds.
FORMAT_VERSION = 2
_OLDEST_FORMAT_VERSION = 1

IDENTITY = "identity.json"
ROOT_TOKEN = "root-token"  # noqa: S105 - a file's name
LOG_KEY_BYTES = 32


class Identity(msgspec.Struct, frozen=True):
    """Whose data this is. A node id is never used for two data directories of a cluster.

    `cluster_id` is empty until the node is a member of a cluster. `cluster_name` is the operator's
    name for the cluster, empty if none was given. `former_cluster_id` is the cluster from which a
    recovery made this one.
    """

    node_id: int
    cluster_id: str
    format_version: int = FORMAT_VERSION
    cluster_name: str = ""
    former_cluster_id: str = ""


class DataDir:
    """A locked data directory and the paths in it. Close it last."""

    def __init__(self, path: Path, lock: int, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self.log = path / "log"
        self.state = path / "state"
        self.floor = path / "floor"
        self.incoming = path / "incoming"
        self.state_old = path / "state.old"
        self.state_damaged = path / "state.damaged"
        self.install_marker = path / "install"
        self.restoring = path / "restore"
        self.recovering = path / "recover"
        self.root_token = path / ROOT_TOKEN
        self.log_key = path / "log-key"
        self._lock = lock

    @classmethod
    def open(
        cls, path: Path, node_id: int, *, cluster_name: str = "", joining: bool = False
    ) -> DataDir:
        """Lock the directory, and create it on first use. Blocks.

        A node that founds a cluster gives it an id here; one that is `joining` has no cluster id
        until `join`. A directory without a cluster name takes the one it is given.
        Raises `DataDirInUse`, `IdentityMismatch`, or `StorageFailed`.
        """
        try:
            path = path.absolute()
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
            try:
                return cls(path, lock, _identify(path, node_id, cluster_name, joining))
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise StorageFailed(
                f"the data directory {path} cannot be used: {with_cure(error)}"
            ) from error

    def join(self, cluster_id: str) -> None:
        """Become part of the cluster `cluster_id`, durably; a repetition does nothing.

        Raises `IdentityMismatch` when the directory belongs to another cluster, `StorageFailed`.
        """
        assert cluster_id
        if self.identity.cluster_id == cluster_id:
            return
        if self.identity.cluster_id:
            raise IdentityMismatch(
                f"{self.path} holds data of cluster {self.identity.cluster_id}, not of "
                f"{cluster_id}: name another data directory, under a node id never used before"
            )
        self._identify_as(replace(self.identity, cluster_id=cluster_id))

    def renew(self, cluster_id: str) -> None:
        """Become part of a new cluster, durably; a repetition does nothing.

        Raises `StorageFailed`.
        """
        former = self.identity.cluster_id
        if former != cluster_id:
            self._identify_as(
                replace(self.identity, cluster_id=cluster_id, former_cluster_id=former)
            )

    def set_state_aside(self) -> None:
        """Keep a damaged state for an investigation. Raises `StorageFailed`."""
        try:
            if is_there(self.state_damaged):
                shutil.rmtree(self.state_damaged)
            rename_durably(self.state, self.state_damaged)
        except OSError as error:
            raise StorageFailed(f"{self.state} cannot be set aside: {with_cure(error)}") from error

    def read_root_token(self) -> bytes | None:
        """What `write_root_token` kept. Raises `StorageFailed` for anything else."""
        try:
            return bytes.fromhex(self.root_token.read_text()) if is_there(self.root_token) else None
        except OSError as error:
            raise StorageFailed(f"{self.root_token} cannot be read: {with_cure(error)}") from error
        except ValueError as error:
            raise StorageFailed(
                f"{self.root_token} is not a token's digest ({error}): replace it with `streamd "
                "token bootstrap --offline`, or remove it"
            ) from error

    def read_log_key(self) -> bytes | None:
        """The private key with which the node signs heads of the log; None if it has none yet.
        Raises `StorageFailed`."""
        try:
            key = self.log_key.read_bytes() if is_there(self.log_key) else None
        except OSError as error:
            raise StorageFailed(f"{self.log_key} cannot be read: {with_cure(error)}") from error
        if key is not None and len(key) != LOG_KEY_BYTES:
            raise StorageFailed(
                f"{self.log_key} has {len(key)} bytes, and a key {LOG_KEY_BYTES}: put it back from "
                "a copy, or remove it; then the node makes a new key"
            )
        return key

    def write_log_key(self, key: bytes) -> None:
        """Keep another key, durably, in the place of the present one. Raises `StorageFailed`."""
        try:
            write_durably(self.log_key, key, 0o600)
        except OSError as error:
            raise StorageFailed(f"{self.log_key} cannot be written: {with_cure(error)}") from error

    def _identify_as(self, identity: Identity) -> None:
        try:
            _write_identity(self.path, identity)
        except OSError as error:
            raise StorageFailed(f"{self.path} cannot be written: {with_cure(error)}") from error
        self.identity = identity

    def close(self) -> None:
        os.close(self._lock)


def write_root_token(path: Path, digest: bytes) -> None:
    """Keep the digest of a token that permits everything on the node of a data directory, durably;
    it replaces an earlier one. The node must not run.

    Raises `DataDirInUse` and `StorageFailed`.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
        try:
            write_durably(path / ROOT_TOKEN, digest.hex().encode() + b"\n")
        finally:
            os.close(lock)
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {with_cure(error)}") from error


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
            + ": stop that one, or name another data directory"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _identify(path: Path, node_id: int, cluster_name: str, joining: bool) -> Identity:
    """The directory's identity, created or completed where it still lacks something."""
    known = _read_identity(path)
    if known is None and (is_there(path / "log" / "CURRENT") or is_there(path / "state")):
        raise IdentityMismatch(
            f"{path} holds data, but its {IDENTITY} is missing, which says whose they are: put it "
            "back from a copy of the directory. For a node that was never in a cluster, "
            f'{{"node_id":{node_id},"cluster_id":""}} will do'
        )
    identity = known or Identity(node_id, cluster_id="")
    if identity.node_id != node_id:
        raise IdentityMismatch(
            f"{path} belongs to node {identity.node_id}, not {node_id}: "
            "set server.node_id to that, or name another data directory"
        )
    if cluster_name and identity.cluster_name not in ("", cluster_name):
        raise IdentityMismatch(
            f"{path} belongs to the cluster named {identity.cluster_name}, not {cluster_name}: "
            "set cluster.name to that, or name another data directory"
        )
    identity = replace(
        identity,
        format_version=FORMAT_VERSION,
        cluster_name=cluster_name or identity.cluster_name,
    )
    if not identity.cluster_id and not joining:
        identity = replace(identity, cluster_id=str(uuid4()))
    if identity != known:
        _write_identity(path, identity)
    return identity


def _read_identity(path: Path) -> Identity | None:
    file = path / IDENTITY
    if not is_there(file):
        return None
    try:
        identity = msgspec.json.decode(file.read_bytes(), type=Identity)
    except UNDECODABLE as error:
        raise IdentityMismatch(
            f"{file} is damaged ({error}): put it back from a copy of the directory"
        ) from error
    if not _OLDEST_FORMAT_VERSION <= identity.format_version <= FORMAT_VERSION:
        raise IdentityMismatch(
            f"{path} has format {identity.format_version}, and this streamd reads up to "
            f"{FORMAT_VERSION}: start the release that wrote it, or a later one"
        )
    return identity


def _write_identity(path: Path, identity: Identity) -> None:
    write_durably(path / IDENTITY, msgspec.json.encode(identity))
