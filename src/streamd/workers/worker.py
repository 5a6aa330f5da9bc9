"""A worker: a process with a front door, whose application passes on what needs the group.

It lives as long as its link. When the group's process ends, however it ends, so does the worker.
"""

from __future__ import annotations

import signal
import socket
import ssl

import structlog
import trio
from msgspec.structs import replace

from streamd.config.settings import Config
from streamd.http.credentials.tls_files import TlsFiles
from streamd.http.door.front_door import FrontDoor
from streamd.http.door.listeners import server_tls, start_listening
from streamd.http.http2.asgi import AsgiApplication
from streamd.http.http2.hypercorn_server import HypercornHttp2
from streamd.http.sockets.descriptors import allowed_connections
from streamd.process.attending import AttendingClock
from streamd.process.event_loop import keep_on_time, seldom_collecting
from streamd.process.logs import set_up_logging
from streamd.process.metrics import Metrics
from streamd.process.privacy import keep_private
from streamd.process.threads import share_one_heap
from streamd.workers.front import WorkerApplication
from streamd.workers.link import Link
from streamd.workers.messages import (
    Counted,
    Drain,
    Ready,
    ReloadTls,
    Start,
    TlsLoaded,
    ToWorker,
    decode_to_worker,
)
from streamd.workers.versions import VersionsView

# How often a worker shows that it lives, and says what it has counted.
COUNT_INTERVAL_S = 1.0

log = structlog.get_logger("streamd.workers")


def main(descriptor: int) -> None:
    """Run the worker with the link `descriptor`."""
    share_one_heap()
    keep_private()
    link = Link(socket.socket(fileno=descriptor), decode_to_worker)
    trio.run(_run, link, clock=AttendingClock())


async def _run(link: Link[ToWorker]) -> None:
    async with trio.open_nursery() as nursery:
        worker = Worker(link, nursery)
        await link.run(worker.take)
        # Nobody is left to answer a client.
        nursery.cancel_scope.cancel()


class Worker:
    """What a worker does besides serving: it starts, counts, and drains."""

    def __init__(self, link: Link[ToWorker], nursery: trio.Nursery) -> None:
        self._link = link
        self._nursery = nursery
        self._metrics = Metrics()
        self._door: FrontDoor | None = None
        self._tls: TlsFiles[ssl.SSLContext] | None = None
        self._application: WorkerApplication | None = None

    def take(self, message: ToWorker) -> None:
        """Take a message of the group's process; the first is `Start`."""
        if isinstance(message, Start):
            self._start(message)
            return
        assert self._application is not None
        assert self._door is not None
        if isinstance(message, Drain):
            self._door.drain()
        elif isinstance(message, ReloadTls):
            if self._tls is not None:
                self._tls.reload()
        else:
            self._application.take(message)

    def _start(self, start: Start) -> None:
        config = start.config
        set_up_logging(config.log.format, config.log.level, worker=start.worker)
        self._application = WorkerApplication(
            self._link,
            VersionsView(start.versions),
            self._metrics,
            config.server,
            start.group_id,
            self._count,
            authenticates=config.auth.mode == "required",
        )
        self._door = _front_door(self._application, config, self._metrics)
        self._tls = server_tls(config.server)
        if self._tls is not None:
            self._tls.on_load = lambda files, error: self._link.send(TlsLoaded([*files], error))
        listeners = [socket.socket(fileno=descriptor) for descriptor in start.listeners]
        self._nursery.start_soon(self._serve, self._door, self._application, listeners)

    async def _serve(
        self,
        door: FrontDoor,
        application: WorkerApplication,
        listeners: list[socket.socket],
    ) -> None:
        """Serve until drained; then the worker ends."""
        start_listening(listeners)
        self._link.send(Ready())
        with seldom_collecting(self._metrics):
            await self._serve_until_drained(door, application, listeners)
        self._count()
        await self._link.written()
        self._nursery.cancel_scope.cancel()

    async def _serve_until_drained(
        self, door: FrontDoor, application: WorkerApplication, listeners: list[socket.socket]
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_on_time, self._metrics)
            nursery.start_soon(self._count_for_ever)
            nursery.start_soon(self._drain_on_signal)
            if self._tls is not None:
                nursery.start_soon(self._tls.follow)
            nursery.start_soon(application.proposer.run)
            await door.serve(listeners, self._tls)
            nursery.cancel_scope.cancel()

    async def _drain_on_signal(self) -> None:
        assert self._door is not None
        assert self._application is not None
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                log.info("draining")
                self._door.drain()
                self._application.end_live_responses()

    async def _count_for_ever(self) -> None:
        while True:
            await trio.sleep(COUNT_INTERVAL_S)
            self._count()

    def _count(self) -> None:
        """Send what was counted since the last call."""
        metrics = self._metrics
        assert self._door is not None
        self._link.send(
            Counted(
                [(*key, count) for key, count in metrics.requests.items()],
                metrics.append_latency.take(),
                metrics.bytes_in,
                metrics.bytes_out,
                metrics.outcomes_unknown,
                len(self._door.connections),
            )
        )
        metrics.requests.clear()
        metrics.bytes_in = metrics.bytes_out = metrics.outcomes_unknown = 0


def _front_door(application: WorkerApplication, config: Config, metrics: Metrics) -> FrontDoor:
    """The front door, with the worker's part of the limits over all clients."""
    server = config.server
    share = max(1, server.max_connections // server.workers)
    of_address = server.max_connections_per_address
    new_ones = server.max_new_connections_per_address_per_s
    server = replace(
        server,
        max_connections_per_address=of_address and -(-of_address // server.workers),
        max_new_connections_per_address_per_s=new_ones and -(-new_ones // server.workers),
        max_connections=allowed_connections(share, clustered=False),
        max_buffered_bytes=server.max_buffered_bytes // server.workers,
    )
    http2 = None
    if server.http == "hypercorn":
        http2 = HypercornHttp2(AsgiApplication(application, server), server)
    return FrontDoor(application, server, metrics, http2=http2, gathering=application.link)
