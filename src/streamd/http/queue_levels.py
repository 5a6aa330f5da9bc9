"""How full the queues and caches of a node are, for its operators."""

from __future__ import annotations

from collections.abc import Mapping

from streamd.group.state_flusher import MAX_UNSTORED_BYTES
from streamd.http.door.front_door import FrontDoor
from streamd.http.router import remembered_paths
from streamd.http.streams.recent_answers import MAX_ANSWERS
from streamd.http.streams.service import Service
from streamd.process.diagnostics import FillLevel
from streamd.streams.state import TAIL_LIMIT_BYTES
from streamd.streams.tokens import MAX_TOKENS


def queue_levels(service: Service, doors: Mapping[str, FrontDoor]) -> dict[str, FillLevel]:
    """What is held now, and how much may be. `doors` are the listeners that this process serves."""
    server, node = service.server, service.node
    state, uploads, downloads = node.group.state, service.uploads, service.downloads
    found = {
        "live_readers": FillLevel(sum(service.hub.reading_now.values()), server.max_live_readers),
        "live_outgoing_bytes": FillLevel(service.outgoing.held_bytes, server.max_buffered_bytes),
        "snapshot_uploads": FillLevel(uploads.held, uploads.limit),
        "snapshot_downloads": FillLevel(downloads.held, downloads.limit),
        "remembered_answers": FillLevel(len(service.answers), MAX_ANSWERS),
        "remembered_paths": remembered_paths(),
        "recent_record_bytes": FillLevel(state.tails.size, TAIL_LIMIT_BYTES),
        "unstored_state_bytes": FillLevel(state.unstored_bytes, MAX_UNSTORED_BYTES),
        "tokens": FillLevel(len(state.tokens), MAX_TOKENS),
        **node.group.admission.held,
    }
    if node.cold_tier is not None:
        cached_bytes = node.cold_tier.reader.cached_bytes
        found["cold_cache_bytes"] = FillLevel(cached_bytes, node.cold_config.cache_bytes)
    for name, door in doors.items():
        limit_bytes = door.config.max_buffered_bytes
        found[f"{name}_connections"] = FillLevel(len(door.connections), door.config.max_connections)
        found[f"{name}_incoming_bytes"] = FillLevel(
            door.shared.bodies.held, door.shared.bodies.limit
        )
        found[f"{name}_outgoing_bytes"] = FillLevel(door.shared.outgoing.held_bytes, limit_bytes)
    return found
