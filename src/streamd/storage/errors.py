"""What can be wrong with a data directory, and what the operator can do about it."""

from __future__ import annotations


class StorageError(Exception):
    """The node cannot continue with this storage; the message says why and what to do."""


class StorageFailed(StorageError):
    """A read or write failed. Nothing may be acknowledged after it: the process must end.

    LevelDB was seen to confirm synced writes after one had failed for lack of space, and to lose
    nearly all of them on the next start. Only a restart shows what is on the disk.
    """


class DataDamaged(StorageError):
    """What is stored is not what was written. What to do about it says `in_words`."""


class DatabaseDamaged(StorageFailed, DataDamaged):
    """A database cannot be opened, because files that belong to it are damaged or missing."""


class LogCorrupt(DataDamaged):
    """An entry in the log is not the one that was written."""


class LogBelowFloor(DataDamaged):
    """The log ends before an entry that was known to be on disk."""


class StateLagsLog(DataDamaged):
    """The log no longer has entries that the state has not applied."""


class DataDirInUse(StorageError):
    """Another process serves from the same data directory."""


class RestoreUnfinished(StorageError):
    """The data directory is being restored from the cold store, and is not complete yet."""


class RecoveryUnfinished(StorageError):
    """A recovery was making this node the only voter of a new cluster, and was cut short."""


class NothingToRecover(StorageError):
    """A recovery was asked for in a directory without data."""


class IdentityMismatch(StorageError):
    """The data directory belongs to another node, or to another version's format."""


class ReleaseTooOld(StorageError):
    """This release does not understand what the cluster's log may hold by now."""


_NOT_SERVED = "The node will not serve what is left as if it were whole."
_RESTORE = "Restore the data directory from a backup, or move it away to start empty."
# An older copy of a member's data, or none, has forgotten a vote or entries that it confirmed.
_REPLACE = (
    "The other members have what it confirmed: put a new node in its place, with an empty data "
    "directory and an id never used before (streamd cluster add, then streamd cluster promote ID "
    "--replacing THIS). Only a member without others is restored from a backup."
)


def in_words(error: StorageError, *, is_member: bool) -> str:
    """An error, and what to do about it, in sentences. `is_member` is whether the node belongs to a
    cluster."""
    if not isinstance(error, DataDamaged):
        return str(error)
    return f"{error}. {_NOT_SERVED} {_REPLACE if is_member else _RESTORE}"
