"""What can be wrong with a data directory, and what the operator can do about it."""

from __future__ import annotations


class StorageError(Exception):
    """The node cannot continue with this storage; the message says why and what to do."""


class StorageFailed(StorageError):
    """A read or write failed. Nothing may be acknowledged after it: the process must end.

    LevelDB was seen to confirm synced writes after one had failed for lack of space, and to lose
    nearly all of them on the next start. Only a restart shows what is on the disk.
    """


class LogCorrupt(StorageError):
    """An entry in the log is not the one that was written."""


class LogBelowFloor(StorageError):
    """The log ends before an entry that was known to be on disk."""


class StateLagsLog(StorageError):
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


RESTORE_HINT = (
    "The node will not serve what is left as if it were whole. Restore the data directory from "
    "a backup, or move it away to start empty."
)
