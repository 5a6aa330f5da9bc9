"""What there is to know about a configuration, on the machine where its node is to run."""

from __future__ import annotations

import secrets
import time
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import trio
from msgspec.structs import replace

from streamd import __version__
from streamd.commands.checking import faults_of, listeners_of, warnings_of
from streamd.commands.doctor.findings import Examined
from streamd.config.redacted import holds_secrets
from streamd.config.settings import Config, split_address
from streamd.hosts.inspection.disks import measure_syncs
from streamd.hosts.inspection.facts import (
    NodeFacts,
    PortFacts,
    PrivateFileFacts,
    StoreFacts,
    SyncFacts,
)
from streamd.hosts.inspection.ports import reach
from streamd.hosts.inspection.survey import survey
from streamd.http.door.listeners import listen
from streamd.objectstore.check import check_object_store
from streamd.objectstore.errors import ColdError
from streamd.process.privacy import is_open_to_others
from streamd.tiering.async_store import open_object_store


def of_configuration(config: Config, file: Path | None) -> Examined:
    """Look at this machine, where no node of the configuration, read from `file`, runs yet."""
    data_dir = Path(config.server.data_dir)
    machine = survey(config)
    facts = NodeFacts(
        node_id=config.server.node_id,
        version=__version__,
        machine=replace(machine, private_files=[*machine.private_files, *_file(file)]),
        syncs=list(_syncs(data_dir)),
        ports=[*_own_ports(config), *_routes(config)],
        store=_store(config, data_dir),
    )
    return Examined(
        {facts.node_id: facts},
        time.time_ns() // 1_000_000,
        faults=list(faults_of(config)),
        warnings=list(warnings_of(config)),
    )


def _file(file: Path | None) -> Iterator[PrivateFileFacts]:
    """The configuration file, if there are secrets in it."""
    if file is not None and holds_secrets(tomllib.loads(file.read_text())):
        yield PrivateFileFacts("--config", str(file), is_open_to_others(file))


def _syncs(data_dir: Path) -> Iterator[SyncFacts]:
    try:
        yield measure_syncs(data_dir)
    except OSError:
        return  # `config check` names the directory that cannot be written.


def _own_ports(config: Config) -> Iterator[PortFacts]:
    for key, address in listeners_of(config).items():
        error = None
        try:
            for one in listen(*split_address(key, address)):
                one.close()
        except OSError as failure:
            error = str(failure)
        yield PortFacts(key, address, error)


def _routes(config: Config) -> Iterator[PortFacts]:
    for address in config.cluster.other_routes if config.cluster.name else ():
        yield PortFacts("cluster.routes", address, trio.run(partial(reach, address)))


def _store(config: Config, data_dir: Path) -> StoreFacts | None:
    cold = config.cold
    if cold.backend == "none":
        return None
    if cold.backend == "fs" and not Path(cold.fs_path or data_dir / "cold").exists():
        return None  # The start makes it; `config check` says whether it can.
    place: str = cold.backend
    try:
        store = open_object_store(cold, data_dir)
        place = store.place
        try:
            check_object_store(store, secrets.token_hex(8))
        finally:
            store.close()
    except ColdError as error:
        return StoreFacts(place, str(error))
    return StoreFacts(place)
