"""How the driver of operations reaches the host of a node: the type of what does it."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Protocol

import msgspec

# It becomes an argument of commands: no dash first, and no character that a shell reads.
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")


def is_release(text: str) -> bool:
    """Whether a text can be the number of a release."""
    return _RELEASE.fullmatch(text) is not None


class Host(msgspec.Struct, frozen=True):
    """A node and where it is reached: ``HOST:PORT`` for its peers, and for its clients."""

    node_id: int
    peer_address: str
    client_address: str


class HostError(Exception):
    """An action on a host failed, or its end was not seen; the message says what and why.

    It may have been carried out. The driver looks at the node, and tries again if it was not.
    """


class HostControl(Protocol):
    """Carries out what needs hands on a node's host.

    Each action returns an empty text once it was carried out or is certain to be, or what the
    operator must do where nobody else can; then the operation waits until it is done. An action
    may be repeated after its effect. It raises `HostError`, and ends within two minutes, an
    installation within ten; nothing of it takes effect later.
    """

    def restart(self, host: Host) -> Awaitable[str]:
        """End the node's process, if it runs, and start one."""

    def stop(self, host: Host) -> Awaitable[str]:
        """End the node's process, and keep it from being started again."""

    def install(self, host: Host, release: str) -> Awaitable[str]:
        """Install a release of streamd, which the node's next process runs."""
