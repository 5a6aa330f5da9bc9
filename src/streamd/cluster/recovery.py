"""The last resort: a cluster that lost its majority for good continues from one node's data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import msgspec

from streamd.config.settings import Config
from streamd.group.stores import Stores
from streamd.process.cures import with_cure
from streamd.raft.membership import encode_configuration
from streamd.raft.messages import Configuration, Entry, EntryKind, HardState
from streamd.storage.data_dir import IDENTITY
from streamd.storage.errors import NothingToRecover, StorageFailed
from streamd.storage.files import is_there, read_checked, remove_durably, write_checked
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import RenewIncarnations
from streamd.streams.etags import incarnation_base
from streamd.streams.model import Header
from streamd.streams.state import State


class Recovered(msgspec.Struct):
    """The new cluster's first state, and what it may lack."""

    cluster_id: str
    former_cluster_id: str
    last_index: int
    last_term: int
    applied_index: int
    former_voters: list[int]
    lost_below_index: int | None


def recover_alone(
    config: Config, take_over: Callable[[Recovered, Stores], None] | None = None
) -> Recovered:
    """Make a stopped node the only voter of a new cluster that holds the node's log. Blocks.

    `take_over` keeps the former cluster away from what the new one will need; it is called with the
    new cluster's first state, before anything is changed.

    Entries that only the lost nodes had are lost; entries in this log that were never committed
    become committed. The cluster first gets a new id: from then on it refuses the nodes of the old
    one, which could otherwise bring back a contradicting history.
    A marker with the result stands from before the first step until after the last. If a kill left
    it, no node starts, and a repetition does all steps and reports the same result.
    Raises `NothingToRecover` if there is no data, as with a mistyped directory, and other
    `StorageError`.
    """
    server, cluster = config.server, config.cluster
    if not is_there(Path(server.data_dir) / IDENTITY):
        raise _nothing(server.data_dir)
    stores = Stores.open(Path(server.data_dir), server.node_id, cluster, recovering=True)
    try:
        header = State(stores.state).header
        stores.log.fit_to_state(header.applied_index, header.applied_term)
        marker = stores.data_dir.recovering
        report = read_checked(marker, Recovered)
        if report is None:
            report = _plan(stores, header)
            write_checked(marker, report)
        if take_over is not None:
            take_over(report, stores)
        stores.data_dir.renew(report.cluster_id)
        _be_only_voter(stores, config, report.cluster_id)
        remove_durably(marker)
        return report
    except OSError as error:
        raise StorageFailed(f"{server.data_dir} cannot be written: {with_cure(error)}") from error
    finally:
        stores.close()


def _plan(stores: Stores, header: Header) -> Recovered:
    """Raises `NothingToRecover`."""
    former = _configuration(stores, header.configuration)
    if not former.members():
        raise _nothing(str(stores.data_dir.path))
    log = stores.log
    return Recovered(
        cluster_id=str(uuid4()),
        former_cluster_id=stores.data_dir.identity.cluster_id,
        last_index=log.last_index,
        last_term=log.term(log.last_index),
        applied_index=header.applied_index,
        former_voters=sorted(former.voters),
        lost_below_index=None if log.lost_below is None else log.lost_below.index,
    )


def _be_only_voter(stores: Stores, config: Config, cluster_id: str) -> None:
    """Write the configuration of one voter into the log, and let the node vote again.

    ETags given out for lost entries must not match what replaces them. A command ensures that, not
    the stored state: a node that is added may get the log from its first entry on.
    """
    server, cluster, log = config.server, config.cluster, stores.log
    advertised = server.advertise or server.listen
    alone = Configuration(
        voters=(server.node_id,), addresses=((server.node_id, cluster.address, advertised),)
    )
    term = log.hard_state.term + 1
    payload = encode_configuration(alone)
    index = log.last_index + 1
    base = incarnation_base(stores.group_id, cluster_id)
    renewal = encode_batch(Batch(0, [RenewIncarnations(base)]))
    entries = [
        Entry(index, term, EntryKind.CONFIGURATION, payload),
        Entry(index + 1, term, EntryKind.COMMANDS, renewal),
    ]
    log.append(entries, HardState(term))
    if log.lost_below is not None:
        log.note_regained()


def _nothing(data_dir: str) -> NothingToRecover:
    return NothingToRecover(
        f"{Path(data_dir).absolute()} holds no data of a cluster member; nothing was changed. "
        "Name the survivor's data directory, and delete nothing before that"
    )


def _configuration(stores: Stores, applied: bytes) -> Configuration:
    """The last configuration in the state or, after it, in the log."""
    decoder = msgspec.msgpack.Decoder(Configuration)
    found = decoder.decode(applied) if applied else Configuration()
    log = stores.log
    index = log.first_index
    while index <= log.last_index:
        entries = log.entries(index, log.last_index + 1, 4 * 1024 * 1024)
        for entry in entries:
            if entry.kind == EntryKind.CONFIGURATION:
                found = decoder.decode(entry.payload)
        index = entries[-1].index + 1
    return found
