"""What an operator does about an error of the operating system, without losing anything.

An error of the system says nothing about the bytes on a disk: a full disk, a missing permission or
too few descriptors leave the data whole. So no cure here deletes or replaces data; that advice
belongs to damage that was found.
"""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Mapping

_NO_PERMISSION = (
    "The user that streamd runs as may not do that: let it own the file or directory and be able "
    "to enter those above it (chown, chmod), or run streamd as the user that does"
)
_NO_FILES = (
    "Stop other programs or raise the system's limit of open files (sysctl fs.file-max), then "
    "start again"
)
_NO_DIRECTORY = (
    "Check the configured path: a part of it is missing, is of another kind, or its file system is "
    "not mounted"
)
_NO_DEVICE = (
    "The disk or the file server does not answer: look at the kernel's messages (dmesg), connect "
    "or mount it again, then start again"
)
_FILES: Mapping[int, str] = {
    errno.ENOSPC: "The file system is full: make room on it or enlarge it, then start again",
    errno.EDQUOT: (
        "The disk quota of the user that streamd runs as is used up: raise it or remove other "
        "files of that user, then start again"
    ),
    errno.EFBIG: "Raise the limit of a file's size (ulimit -f, LimitFSIZE=), then start again",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: (
        "The file system is mounted read-only. A kernel also does that after a disk error: look at "
        "its messages (dmesg), mount it writable, then start again"
    ),
    errno.EMFILE: (
        "This process may not open more files: raise its limit (ulimit -n, LimitNOFILE=), then "
        "start again"
    ),
    errno.ENFILE: _NO_FILES,
    errno.ENOMEM: "Give the machine or the container more memory, then start again",
    errno.EIO: (
        "The disk fails: look at the kernel's messages (dmesg), copy the directory to a healthy "
        "disk before anything else, and start on the copy"
    ),
    errno.ENOENT: _NO_DIRECTORY,
    errno.ENOTDIR: _NO_DIRECTORY,
    errno.EISDIR: _NO_DIRECTORY,
    errno.EEXIST: _NO_DIRECTORY,
    errno.ELOOP: "Symbolic links on the configured path lead in a circle: correct them",
    errno.ENAMETOOLONG: "Configure a shorter path",
    errno.EBUSY: "Another program uses it: stop that program, then start again",
    errno.EAGAIN: "Another process uses it: stop that process, then start again",
    errno.ETXTBSY: "Another program uses it: stop that program, then start again",
    errno.ENOLCK: (
        "The file system cannot lock files: turn its locks on, or use a disk of this machine"
    ),
    errno.ENOTSUP: "Use a file system that supports this, such as ext4 or xfs on a local disk",
    errno.EINVAL: "Use a file system that supports this, such as ext4 or xfs on a local disk",
    errno.ENODEV: _NO_DEVICE,
    errno.ENXIO: _NO_DEVICE,
    errno.ESTALE: _NO_DEVICE,
    errno.ETIMEDOUT: _NO_DEVICE,
}
_ADDRESSES: Mapping[int, str] = {
    errno.EADDRINUSE: (
        "Another program listens there (ss -ltnp shows which): stop it, or configure another port"
    ),
    errno.EADDRNOTAVAIL: (
        "No interface of this machine has that address: configure one of its own (ip addr shows "
        "them), 0.0.0.0 or [::]"
    ),
    errno.EACCES: (
        "Ports below 1024 need a privilege: configure a port from 1024 on, or grant "
        "CAP_NET_BIND_SERVICE"
    ),
    errno.EAFNOSUPPORT: "This machine has no such protocol (IPv6?): configure an IPv4 address",
}
_NUMBERS = {os.strerror(number): number for number in _FILES}


def cure(number: int | None) -> str:
    """What to do about an error number of a file or directory, in sentences."""
    return _FILES.get(number or 0, "Remove the cause, then start again") + "."


def cure_of_address(number: int | None) -> str:
    """What to do about an error number of an address to listen on, in sentences."""
    return {**_FILES, **_ADDRESSES}.get(number or 0, "Check the name and the address") + "."


def with_cure(error: OSError) -> str:
    """The error of a file or directory and what to do about it, in sentences. An error of TLS has
    numbers of its own, and says itself what is wrong with a file."""
    if isinstance(error, ssl.SSLError):
        return str(error)
    return f"{error}. {cure(error.errno)}"


def number_in(message: str) -> int | None:
    """The error number of a message that ends with the system's words for it; None if it ends
    otherwise. LevelDB passes on only these words."""
    return next((n for words, n in _NUMBERS.items() if message.endswith(words)), None)
