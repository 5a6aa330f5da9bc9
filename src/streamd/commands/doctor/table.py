"""The checks and their names, which are stable: programs read them in ``--json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamd.commands.doctor import machine, members, secrecy, stores
from streamd.commands.doctor.findings import Check, Examined, Finding

CHECKS: Mapping[str, Check] = {
    "configuration": members.configuration,
    "node.answer": members.answers,
    "node.membership": members.membership,
    "node.release": members.releases,
    "node.clock": members.clocks,
    "quorum.now": members.quorum,
    "quorum.loss": members.losses,
    "quorum.lag": members.replication,
    "port.own": members.ports,
    "port.peers": members.connections,
    "port.clients": members.client_addresses,
    "disk.room": machine.room,
    "disk.kind": machine.file_system,
    "disk.sync": machine.syncs,
    "limit.files": machine.descriptors,
    "limit.maps": machine.maps,
    "limit.memory": machine.memory,
    "secret.certificate": secrecy.certificates,
    "secret.mode": secrecy.modes,
    "secret.token": members.tokens,
    "store.access": stores.access,
    "store.hot": stores.hot,
    "store.work": stores.work,
    "archive.lag": stores.lag,
    "archive.alarm": stores.alarms,
    "archive.restore": stores.restore_point,
}


def examine(examined: Examined) -> Iterator[tuple[str, Finding]]:
    """All findings, each with the name of its check, in the order of the table."""
    for name, check in CHECKS.items():
        for finding in check(examined):
            yield name, finding
