"""`streamd serve`: a node and its HTTP server in this process, from start to drained stop."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
import trio

from streamd.app import App
from streamd.commands import greeting
from streamd.config.names import injected_variables
from streamd.config.settings import Config, ConfigError, ServerConfig
from streamd.group.stores import Stores
from streamd.http.credentials.tls_files import TlsFiles, export_expiry, reload_on_hangup
from streamd.http.door.front_door import FrontDoor
from streamd.http.door.listeners import hold_ports, listen, server_tls
from streamd.node.node import wall_clock_ms
from streamd.process.addresses import is_loopback
from streamd.process.cures import cure_of_address
from streamd.process.event_loop import (
    keep_on_time,
    note_each_minute,
    note_history,
    seldom_collecting,
)
from streamd.process.privacy import close_to_others, is_open_to_others
from streamd.process.service_manager import READY, STOPPING, keep_watchdog_quiet, notify
from streamd.process.threads import in_thread

# How long the log's thread waits at most for an event loop that is busy, each time that it comes
# back from the disk. Python's 5 ms would be most of a write.
_SWITCH_INTERVAL_S = 0.001

log = structlog.get_logger("streamd.server")


def _announce(text: str) -> None:
    # At once: into a pipe Python would print it when the process ends.
    print(text, flush=True)
    notify(READY)


async def serve(config: Config, announce: Callable[[str], None] = _announce) -> None:
    """Serve until SIGTERM or SIGINT, then hand leadership over and drain. A second signal ends the
    process at once.

    Raises `ConfigError` when an address, certificate or cold store cannot be used,
    `FormationError` when the cluster cannot be founded, `StorageError` when the data directory
    cannot be used, at start or later, and `RaftViolation`.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    server, admin = config.server, config.admin_server
    tls, admin_tls = server_tls(server), None if admin is None else server_tls(admin)
    listeners = _listen("server.listen", server)
    admin_listeners = [] if admin is None else _listen("admin.listen", admin)
    stores = await in_thread(Stores.open, Path(server.data_dir), server.node_id, config.cluster)
    try:
        app = App(config, stores)
        export_expiry(app.metrics, {"server": tls, "cluster": app.peer_tls})
        _warn_of_injected_variables()
        _warn_of_open_ports(config)
        async with app.running():
            url, directory = _url(server, listeners), stores.data_dir.path
            _keep_from_others(config, directory)
            if app.authority.knows_nobody:
                log.warning(
                    "requests need a token, and there is none: stop the node, run `streamd token "
                    "bootstrap --offline` on its data directory, and start it again; or start it "
                    "with STREAMD_ROOT_TOKEN",
                    data_dir=str(directory),
                )
            operators = None if admin is None else _url(admin, admin_listeners)
            greet = greeting.lines if sys.stdout.isatty() else greeting.line
            text = greet(config, url, operators, directory)
            async with _serving_operations(app.admin_door(), admin_listeners, admin_tls):
                others = [admin_tls, app.peer_tls]
                with seldom_collecting(app.metrics):
                    await _serve_clients(app, listeners, tls, others, lambda: announce(text))
            log.info("drained")
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(stores.close)


async def _serve_clients(
    app: App,
    listeners: list[socket.socket],
    tls: TlsFiles[ssl.SSLContext] | None,
    other_tls: Sequence[TlsFiles[Any] | None],
    ready: Callable[[], None],
) -> None:
    """Serve until a signal has drained all clients. All TLS follows its files meanwhile."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_on_time, app.metrics)
        nursery.start_soon(note_each_minute, app.metrics)
        nursery.start_soon(keep_watchdog_quiet)
        if app.config.server.console:
            nursery.start_soon(note_history, app.metrics, wall_clock_ms)
        if app.config.server.workers == 1:
            ready()
            door = app.front_door()
            nursery.start_soon(_drain_on_signal, app, door.drain)
            _follow(nursery, app, [tls, *other_tls])
            await door.serve(listeners, tls)
        else:
            supervisor = app.supervisor(listeners)
            if app.trail is not None:
                supervisor.tls_loaded = app.trail.tls_loaded
            nursery.start_soon(_drain_on_signal, app, supervisor.drain)
            # The workers follow their files themselves; the expiry in the metrics is this one's.
            if tls is not None:
                nursery.start_soon(tls.follow)
            _follow(nursery, app, other_tls, supervisor.reload_tls if tls else None)
            await supervisor.run(ready)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _serving_operations(
    door: FrontDoor | None,
    listeners: Sequence[socket.socket],
    tls: TlsFiles[ssl.SSLContext] | None,
) -> AsyncIterator[None]:
    """Inside, operations are served at their own listener, if they have one. It drains last, so
    that operators can see how clients are drained."""
    if door is None:
        yield
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.serve, listeners, tls)
        yield
        door.drain()


def _warn_of_injected_variables() -> None:
    if names := injected_variables(os.environ):
        log.warning(
            "ignored: Kubernetes has set these for services with names like streamd; "
            "enableServiceLinks: false keeps them out",
            variables=names,
        )


def _warn_of_open_ports(config: Config) -> None:
    if config.cluster.insecure:
        log.warning(
            "cluster.insecure: anyone who reaches the peers' port can act as any node",
            listen=config.cluster.listen,
        )
    if config.auth.mode != "none":
        return
    server, admin = config.server, config.admin_server
    if not is_loopback(server.listen_address[0]):
        more = "" if admin is not None else ", and operate the node"
        log.warning(
            "auth.mode = none: anyone who reaches the port may read, write and delete "
            f"everything{more}",
            listen=server.listen,
        )
    if admin is not None and not is_loopback(admin.listen_address[0]):
        log.warning(
            "auth.mode = none: anyone who reaches the port may operate the node",
            listen=admin.listen,
        )


def _follow(
    nursery: trio.Nursery,
    app: App,
    contexts: Sequence[TlsFiles[Any] | None],
    reload_elsewhere: Callable[[], None] | None = None,
) -> None:
    """Let TLS follow its files in `nursery`, and load them at SIGHUP; open the audit trail's file
    again then. If there is nothing of this, SIGHUP ends the process, as the system has it."""
    reloads = [] if reload_elsewhere is None else [reload_elsewhere]
    if app.trail is not None:
        reloads.append(app.trail.reopen)
    for one in contexts:
        if one is not None:
            if app.trail is not None:
                one.on_load = app.trail.tls_loaded
            nursery.start_soon(one.follow)
            reloads.append(one.reload)
    if reloads:
        nursery.start_soon(reload_on_hangup, reloads)


async def _drain_on_signal(app: App, drain: Callable[[], None]) -> None:
    """Hand leadership over at the first signal, then drain; end the process at the second."""

    async def stop() -> None:
        await app.node.hand_over()
        app.hub.drain()
        drain()

    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            is_stopping = False
            async for number in signals:
                if is_stopping:
                    os._exit(128 + number)
                is_stopping = True
                log.info("draining", signal=signal.Signals(number).name)
                notify(STOPPING)
                nursery.start_soon(stop)


def _listen(key: str, server: ServerConfig) -> list[socket.socket]:
    """Sockets that listen, or that hold the ports for the workers'. Raises `ConfigError` naming
    `key`."""
    try:
        return (listen if server.workers == 1 else hold_ports)(*server.listen_address)
    except OSError as error:
        advice = cure_of_address(error.errno)
        raise ConfigError(f"{key}: cannot listen on {server.listen}: {error}. {advice}") from None


def _keep_from_others(config: Config, directory: Path) -> None:
    """Close the directories of data to other users of the machine, as earlier releases did not.
    Name what stays open, and the keys that are, which are not the node's to close."""
    directories = [directory]
    if config.cold.backend == "fs" and config.cold.fs_path is not None:
        directories.append(Path(config.cold.fs_path))
    for path in directories:
        with suppress(OSError):  # Another user's: then it is named below.
            if close_to_others(path):
                log.info(
                    "other users of this machine could read the directory; its mode was corrected",
                    path=str(path),
                )
    keys = (
        config.server.tls_key,
        config.cluster.tls_key,
        config.cluster.secret_file,
        config.subscriptions.secret_file,
    )
    for path in (*directories, *(Path(key) for key in keys if key is not None)):
        with suppress(OSError):  # A cold store that does not answer yet may lack its directory.
            if is_open_to_others(path):
                log.warning(
                    "readable by other users of this machine: run chmod go= on it", path=str(path)
                )


def _url(server: ServerConfig, listeners: list[socket.socket]) -> str:
    host, _ = server.listen_address
    port = listeners[0].getsockname()[1]
    scheme = "http" if server.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
