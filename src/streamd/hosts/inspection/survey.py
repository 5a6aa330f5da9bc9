"""A look at everything on this machine that a configuration names. It changes nothing."""

from __future__ import annotations

from pathlib import Path

from streamd.config.settings import ADMIN_CONNECTIONS, Config
from streamd.hosts.inspection.certificates import certificates
from streamd.hosts.inspection.disks import disk
from streamd.hosts.inspection.facts import MachineFacts, SettingFacts
from streamd.hosts.inspection.files import private_files
from streamd.hosts.inspection.machine import limits

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000


def survey(config: Config) -> MachineFacts:
    """What the machine has for this configuration. Blocks."""
    return MachineFacts(
        _settings(config),
        disk(Path(config.server.data_dir), config.storage.min_free_bytes),
        limits(),
        certificates(config),
        private_files(config),
    )


def _settings(config: Config) -> SettingFacts:
    return SettingFacts(
        max_connections=config.server.max_connections,
        is_clustered=config.cluster.name is not None,
        other_connections=0 if config.admin.listen is None else ADMIN_CONNECTIONS,
        election_timeout_ms=config.cluster.election_timeout_ms,
        snapshot_interval_ms=round(config.cold.snapshot_interval_minutes * _MINUTE_MS),
        scrub_interval_ms=round(config.cold.scrub_interval_hours * _HOUR_MS),
    )
