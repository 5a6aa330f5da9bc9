"""The disk guard: writes are refused before the disk is full, because a full disk ends the node.

A node on a full disk can do nothing: not serve reads, not delete, not even start. So it keeps a
reserve. While less than that is free, the leader takes no commands that bring bytes; reads, deletes
and all else that a log entry or two can carry go on, and LevelDB has room to compact.

A look at the file system may hang as a disk does, so a thread takes it, and no write waits for it.
It is taken twice a second, and again whenever the log grew by a sixteenth of the reserve: writers
that fill gigabytes in half a second would be through with the reserve before the next look.

What the log has and the state's store has not yet will take its bytes twice more: in the log's
LevelDB, for which the journal has no room, and in the state's. They count as used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import structlog
import trio

from streamd.config.settings import StorageConfig
from streamd.group.admission import Admission
from streamd.group.state_flusher import LogGrowth
from streamd.hosts.inspection.disks import DiskSpace, disk_space, low_bytes
from streamd.process.metrics import Metrics
from streamd.process.threads import RunBlocking

INTERVAL_S = 0.5
# Writes go on at an eighth above the limit: at the limit itself they would stop and go.
_HYSTERESIS = 8
# A look is due when the log grew by this share of the reserve.
_LOOK_SHARE = 16
_COPIES = 2

log = structlog.get_logger("streamd.storage")


class DiskGuard:
    """Tells an `Admission` whether the disk of a data directory is low.

    `unstored_bytes` says how much the log has that is not in the state's store yet.
    `free_bytes` is None until the first look, and after one that failed.
    """

    def __init__(
        self,
        admission: Admission,
        directory: Path,
        config: StorageConfig,
        *,
        log_growth: LogGrowth,
        unstored_bytes: Callable[[], int],
        run_blocking: RunBlocking,
        space: Callable[[Path], DiskSpace] = disk_space,
    ) -> None:
        self._admission = admission
        self._directory = directory
        self._configured = config.min_free_bytes
        self._log_growth = log_growth
        self._unstored_bytes = unstored_bytes
        self._run_blocking = run_blocking
        self._space = space
        self.min_free_bytes = self._configured or 0
        self.free_bytes: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether it has anything to guard."""
        return self._configured != 0

    @property
    def is_low(self) -> bool:
        """Whether writes are refused for want of space."""
        return self._admission.is_disk_low

    async def look(self) -> None:
        """Look once. What cannot be seen changes nothing: the disk's own errors end the node."""
        try:
            free, total = await self._run_blocking(self._space, self._directory)
        except OSError as error:
            if self.free_bytes is not None:
                log.warning("the free space of the disk is unknown", error=str(error))
            self.free_bytes = None
            return
        self.free_bytes = free
        if self._configured is None:
            self.min_free_bytes = low_bytes(None, total)
        self._judge(free - _COPIES * self._unstored_bytes())

    async def watch(self) -> NoReturn:
        """Look every `INTERVAL_S`, and sooner if much is written."""
        while True:
            with trio.move_on_after(INTERVAL_S):
                await self._log_growth.wait_for(self.min_free_bytes // _LOOK_SHARE)
            await self.look()

    def export(self, metrics: Metrics) -> None:
        """Register the metrics."""
        metrics.gauge(
            "disk_free_bytes",
            "Free bytes of the data directory's file system.",
            lambda: float("nan") if self.free_bytes is None else self.free_bytes,
        )
        metrics.gauge(
            "disk_min_free_bytes",
            "Free bytes below which writes are refused (storage.min_free_bytes).",
            lambda: self.min_free_bytes,
        )
        metrics.gauge(
            "disk_low",
            "1 if less than storage.min_free_bytes is free and writes are refused, else 0.",
            lambda: self.is_low,
        )

    def report(self) -> dict[str, object]:
        """The content of `disk` in the node's status."""
        return {
            "free_bytes": self.free_bytes,
            "min_free_bytes": self.min_free_bytes,
            "low": self.is_low,
        }

    def _judge(self, free: int) -> None:
        """Judge by the bytes that will be free once all that was accepted is stored."""
        least = self.min_free_bytes
        if self.is_low and free >= least + least // _HYSTERESIS:
            log.info("the disk has room again: writes are accepted", free_bytes=free)
            self._admission.is_disk_low = False
        elif not self.is_low and free < least:
            log.error(
                "the disk is nearly full: this node refuses writes while it is "
                "the leader; make room",
                free_bytes=free,
                min_free_bytes=least,
            )
            self._admission.is_disk_low = True
