"""A server with workers, and which of its processes serves a connection."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.server_process import ServerProcess

TEXT = {"Content-Type": "text/plain"}
STREAM = "/v1/stream/shared"
PATIENCE_S = 90.0
_POLL_S = 0.02


def with_workers(directory: Path, count: int = 2, **environment: str) -> ServerProcess:
    """A server in `directory` with so many workers."""
    settings = {f"STREAMD_{name}": value for name, value in environment.items()}
    return ServerProcess(
        directory / "data", environment={"STREAMD_SERVER_WORKERS": str(count), **settings}
    )


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(_POLL_S)


def workers_of(server: ServerProcess) -> list[int]:
    """The processes that the server has started and that run."""
    assert server.process is not None
    pid = server.process.pid
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [child for child in map(int, listed.split()) if is_alive(child)]


def is_alive(pid: int) -> bool:
    """Whether a process runs, and is not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


class Client:
    """One connection, which stays open."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        self._connection.connect()

    @property
    def worker(self) -> int:
        """The process at the other end."""
        local = self._connection.sock.getsockname()[1]

        def found() -> list[int]:
            inode = _inode_of_peer(self._server.port, local)
            return [pid for pid in workers_of(self._server) if inode in _sockets_of(pid)]

        wait_until(found, "the connection is accepted")
        return found()[0]

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """The response, whose body is not read yet."""
        self.begin(method, path, body, headers)
        return self.answer()

    def answer(self) -> http.client.HTTPResponse:
        """The response to a request that was begun."""
        return self._connection.getresponse()

    def begin(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request, without waiting for the response."""
        self._connection.request(method, path, body, headers or {})

    def head(self, path: str = STREAM) -> http.client.HTTPResponse:
        response = self.ask("HEAD", path)
        response.read()
        return response

    def get(self, path: str) -> bytes:
        response = self.ask("GET", path)
        body = response.read()
        assert response.status == 200, (response.status, body)
        return body

    def create(self, path: str = STREAM) -> None:
        response = self.ask("PUT", path, headers=TEXT)
        assert (response.status, response.read()) == (201, b"")

    def append(self, data: bytes, path: str = STREAM) -> str:
        """Append, and return the next offset."""
        response = self.ask("POST", path, data, headers=TEXT)
        body = response.read()
        assert response.status == 204, (response.status, body)
        return response.headers["Stream-Next-Offset"]

    def close(self) -> None:
        self._connection.close()


def on_each_worker(server: ServerProcess) -> list[Client]:
    """A connection to each worker, in the order of `workers_of`."""
    found: dict[int, Client] = {}
    wanted = workers_of(server)

    def complete() -> bool:
        client = connected(server)
        if client.worker in found:
            client.close()
        else:
            found[client.worker] = client
        return len(found) == len(wanted)

    wait_until(complete, "each worker accepts a connection")
    return [found[pid] for pid in wanted]


def connected(server: ServerProcess) -> Client:
    """A connection to a server whose workers may be away for a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return Client(server)
        except OSError:
            assert time.monotonic() < deadline, "no worker listens"
            time.sleep(_POLL_S)


def _inode_of_peer(server_port: int, client_port: int) -> str:
    """The server's end of a connection, as the system numbers sockets."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ports = [int(address.rpartition(":")[2], 16) for address in fields[1:3]]
        if ports == [server_port, client_port]:
            return fields[9]
    return ""


def _sockets_of(pid: int) -> set[str]:
    sockets = set()
    directory = Path(f"/proc/{pid}/fd")
    try:
        descriptors = list(directory.iterdir())
    except OSError:
        return set()
    for descriptor in descriptors:
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    return sockets
