"""Starts the workers, and starts them again when they end.

The sockets of a worker are its own: they share the port with those of the others (SO_REUSEPORT),
and the system distributes new connections over all that listen. So a worker that ends takes only
its own clients with it, and none is sent to it while it is away.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import structlog
import trio
from msgspec.structs import replace

from streamd.config.settings import AuthConfig, ClusterConfig, ColdConfig, Config
from streamd.group.group import Group
from streamd.http.door.listeners import share_ports
from streamd.http.protocol.application import Application
from streamd.http.sockets.outgoing import Outgoing
from streamd.process.metrics import Metrics
from streamd.workers.desk import Desk
from streamd.workers.link import Link
from streamd.workers.messages import Drain, FromWorker, ReloadTls, Start, decode_from_worker
from streamd.workers.versions import Versions
from streamd.workers.worker import COUNT_INTERVAL_S

# A worker that has been silent for so many intervals is stopped or in an endless loop. On a busy
# machine a start takes long.
MAX_SILENCE = 20
_MAX_START = 60
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
# Beyond the front door's own limit, for the last answers.
_DRAIN_MARGIN_S = 2.0
# From the end of a worker's link to that of its process.
_EXIT_S = 1.0

_HARMLESS = re.compile(
    r"PATH|HOME|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLUMNS|NO_COLOR|FORCE_COLOR|TMPDIR|VIRTUAL_ENV"
    r"|(?:PYTHON|LD_|MALLOC_|COVERAGE_)[A-Z0-9_]*|GLIBC_TUNABLES|STREAMD_PURE_PYTHON"
)

log = structlog.get_logger("streamd.workers")


class Supervisor:
    """The workers of a node, at the addresses to which the sockets `held` are bound.

    `application` answers what they forward, and `groups`, by id, take their commands. With
    `keeps_answers` they answer reads again while nothing changes: only of a node that needs no
    other's word for a read. `has_limits` says whether requests are charged to anyone. `tls_loaded`
    is called for each worker, as `TlsFiles.on_load`.
    """

    def __init__(
        self,
        config: Config,
        held: list[socket.socket],
        application: Application,
        group: Group,
        metrics: Metrics,
        *,
        keeps_answers: bool,
        has_limits: Callable[[], bool],
        fatal: tuple[type[BaseException], ...],
    ) -> None:
        self._config = config
        self._held = held
        self._application = application
        self._groups: Mapping[int, Group] = {group.group_id: group}
        self._group_id = group.group_id
        self._metrics = metrics
        self._keeps_answers = keeps_answers
        self._fatal = fatal
        self._versions = Versions()
        self._gathering = group.writes.gathering
        self._has_limits = has_limits
        self._versions.set_limited(has_limits())
        group.watch(self._versions.applied, self._turn_taken)
        self._outgoing = Outgoing(config.server.max_buffered_bytes)
        self._desks: dict[int, Desk] = {}
        self._draining = False
        self._ready: Callable[[], None] | None = None
        self.tls_loaded: Callable[[Sequence[str], str | None], None] = lambda *_: None
        self._drained = trio.Event()
        self._restarts = dict.fromkeys(map(str, range(1, config.server.workers + 1)), 0)
        metrics.gauge("http_connections", "Open connections of clients.", self._connections)
        metrics.gauge("workers", "Worker processes that accept connections.", self._listening)
        metrics.counter_by(
            "worker",
            "worker_restarts",
            "Restarts of each worker process.",
            lambda: self._restarts,
        )

    async def run(self, ready: Callable[[], None]) -> None:
        """Run the workers until they are drained or this is cancelled; `ready` is called once when
        all of them listen."""
        self._ready = ready
        try:
            async with trio.open_nursery() as handlers:
                async with trio.open_nursery() as nursery:
                    for number in range(1, self._config.server.workers + 1):
                        nursery.start_soon(self._keep, number, handlers)
                handlers.cancel_scope.cancel()
        finally:
            self._versions.close()
            for holder in self._held:
                holder.close()

    def drain(self) -> None:
        """Let all workers finish, and start no other."""
        self._draining = True
        self._drained.set()
        for desk in self._desks.values():
            desk.link.send(Drain())

    def reload_tls(self) -> None:
        """Let all workers load the TLS files again."""
        for desk in self._desks.values():
            desk.link.send(ReloadTls())

    def _turn_taken(self) -> None:
        self._versions.set_limited(self._has_limits())
        for desk in self._desks.values():
            desk.link.flush()

    def _connections(self) -> int:
        return sum(desk.connections for desk in self._desks.values())

    def _listening(self) -> int:
        return sum(desk.is_ready for desk in self._desks.values())

    def _one_is_ready(self) -> None:
        """Say so when all are ready, unless they shall end."""
        if self._draining or self._ready is None:
            return
        if self._listening() == self._config.server.workers:
            ready, self._ready = self._ready, None
            ready()

    async def _keep(self, number: int, handlers: trio.Nursery) -> None:
        """Run a worker, and another in its place when it ends, until drained."""
        pause_s = _FIRST_PAUSE_S
        while not self._draining:
            started = trio.current_time()
            try:
                status = await self._run_one(number, handlers)
            except OSError as error:
                log.warning("worker does not start", worker=number, error=str(error))
                status = 1
            if self._draining:
                return
            self._restarts[str(number)] += 1
            lived_s = trio.current_time() - started
            pause_s = _next_pause_s(pause_s, lived_s)
            report = log.info if status == 0 else log.warning
            report("worker ended", worker=number, status=status, starts_again_in_s=pause_s)
            with trio.move_on_after(pause_s):
                await self._drained.wait()

    async def _run_one(self, number: int, handlers: trio.Nursery) -> int:
        """Run one worker to its end. Returns its exit status. Raises `OSError`."""
        process, link = self._start(number)
        versions = self._versions if self._keeps_answers else None
        desk = self._desks[number] = Desk(
            link, self._application, self._groups, self._metrics, self._outgoing, versions,
            self._fatal, handlers, self._one_is_ready, self.tls_loaded,
        )  # fmt: skip
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, desk, number, process)
                await desk.serve()
                nursery.cancel_scope.cancel()
            with trio.move_on_after(_EXIT_S):
                await _ended(process)
        finally:
            del self._desks[number]
            process.kill()  # Harmless if it has ended.
            status = process.wait()
        return status

    async def _watch(self, desk: Desk, number: int, process: subprocess.Popen[bytes]) -> None:
        """End a worker that is silent, or drains for too long."""
        silence = MAX_SILENCE - _MAX_START
        until = float("inf")
        limit_s = self._config.server.drain_timeout_ms / 1000 + _DRAIN_MARGIN_S
        while silence < MAX_SILENCE and trio.current_time() < until:
            before = desk.news
            # This process may have been stopped itself: what counts are intervals, each long
            # enough to receive what was sent meanwhile.
            await trio.sleep(COUNT_INTERVAL_S)
            silence = silence + 1 if desk.news == before else 0  # From then on it has started.
            if self._draining:
                until = min(until, trio.current_time() + limit_s)
        log.warning("worker is silent, and killed", worker=number)
        process.kill()

    def _start(self, number: int) -> tuple[subprocess.Popen[bytes], Link[FromWorker]]:
        """Start a worker. Blocks for a few milliseconds: the thread that starts it must be one that
        does not end before the process does (`__main__`)."""
        listeners = share_ports(self._held)
        ours, its = socket.socketpair()
        inherited = [one.fileno() for one in (its, *listeners)] + [self._versions.fileno]
        command = [sys.executable, "-P", "-m", "streamd.workers", str(its.fileno())]
        try:
            process = subprocess.Popen(
                [*command, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                env=_for_a_worker(os.environ),
            )
        except OSError:
            ours.close()
            raise
        finally:
            its.close()
            for listener in listeners:
                listener.close()
        link = Link(ours, decode_from_worker, self._gathering)
        config = for_a_worker(self._config)
        link.send(Start(number, config, self._group_id, inherited[1:-1], self._versions.fileno))
        return process, link


def for_a_worker(config: Config) -> Config:
    """What a worker needs of the configuration, without the secrets of the object store, the peers
    and the administrators: it is the process that strangers speak to."""
    auth = AuthConfig(mode=config.auth.mode)
    return replace(config, cluster=ClusterConfig(), cold=ColdConfig(), auth=auth)


def _for_a_worker(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter, its libraries and a terminal look at. What else there is
    may be a secret: of a setting, by any name (``$NAME``), or of the object store's library."""
    return {name: value for name, value in environment.items() if _HARMLESS.fullmatch(name)}


def _next_pause_s(pause_s: float, lived_s: float) -> float:
    """How long to wait before a worker is started again, which may end soon each time."""
    return _FIRST_PAUSE_S if lived_s > _LONGEST_PAUSE_S else min(2 * pause_s, _LONGEST_PAUSE_S)


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process."""
    descriptor = os.pidfd_open(process.pid)
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)
