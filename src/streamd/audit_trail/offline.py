"""Entries of commands that act on a node while it is stopped."""

from __future__ import annotations

import time
from pathlib import Path

import trio

from streamd.audit_trail.file_sink import FileSink
from streamd.audit_trail.sinks import SinkFailed
from streamd.audit_trail.trail import entry
from streamd.config.settings import Config, ConfigError
from streamd.process.threads import in_thread


def record(config: Config, event: str, **values: object) -> None:
    """Record an act in the configured file, durably, before it happens. A stream needs a node that
    runs, and gets no entry.

    Raises `ConfigError` if the file cannot be written: then the act must not happen. Blocks.
    """
    if config.log.audit is not None and config.log.audit_stream is None:
        trio.run(_record, Path(config.log.audit), config.server.node_id, event, values)


async def _record(file: Path, node_id: int, event: str, values: dict[str, object]) -> None:
    now_ms = time.time_ns() // 1_000_000
    sink = FileSink(file, in_thread)
    try:
        await sink.open()
        try:
            entry_id = f"{node_id}-{now_ms:x}-1"
            made = entry(event, values, node_id=node_id, entry_id=entry_id, at_ms=now_ms)
            await sink.write([made], durable=True)
        finally:
            await sink.close()
    except SinkFailed as error:
        raise ConfigError(f"log.audit: {error}") from None
