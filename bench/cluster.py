"""`python -m bench.cluster`: what a majority costs, and what a failure does to the rate.

A single node and three nodes on one machine, one after the other in each round; then the leader of
the three is killed, a follower lags until only a Raft snapshot can bring it back, and a fourth
node joins.
"""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench import wrk
from bench.client import Client
from bench.errors import BenchError
from bench.failover import Appender, longest_gap_s, records_at
from bench.process import ServerProcess, free_port
from bench.servers import Streamd

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench-cluster"
_TARGET = "/v1/stream/bench"
_CONTENT_TYPE = "application/octet-stream"
_ELECTION_TIMEOUT_MS = 1000
_DEADLINE_S = 120.0
_POLL_S = 0.02
# Of each node, while the leader is killed.
_CLIENTS = 4
_ASK_TIMEOUT_S = 2.0


@dataclass(eq=False)
class Node:
    """A node's place on the machine, and its process while it has one."""

    node_id: int
    data_dir: Path
    port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{_TARGET}"

    def start(self, routes: Sequence[int]) -> None:
        """Start it; with `routes`, the peers' ports, as a member of a cluster."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config = self.data_dir / "streamd.toml"
        text = f'[server]\nnode_id = {self.node_id}\nlisten = "127.0.0.1:{self.port}"\n'
        text += f'data_dir = "{self.data_dir / "data"}"\n'
        if routes:
            text += f'[cluster]\nname = "bench"\nlisten = "127.0.0.1:{self.peer_port}"\n'
            text += f"bootstrap_node_id = 1\nelection_timeout_ms = {_ELECTION_TIMEOUT_MS}\n"
            text += "routes = [" + ", ".join(f'"127.0.0.1:{port}"' for port in routes) + "]\n"
        config.write_text(text)
        command = Streamd().command(self.port, self.data_dir / "data")
        command = [command[0], "serve", "--config", str(config)]
        log = self.data_dir / "log"
        self.process = ServerProcess(command, port=self.port, core=None, log=log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None

    def ask(self, path: str, body: dict[str, object] | None = None) -> tuple[int, Any]:
        """Status and JSON of a GET, or of a POST of `body`; 0 when it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ASK_TIMEOUT_S)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                headers = {"Content-Type": "application/json"}
                connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        """The node's own status; empty when it does not answer."""
        code, answer = self.ask("/cluster/status")
        return dict(answer) if code == 200 else {}

    def is_ready(self) -> bool:
        return self.ask("/readyz/cluster")[0] == 200

    def appends(self) -> bool:
        """Whether one append succeeds now."""
        with suppress(OSError, BenchError), Client(self.port, timeout_s=_ASK_TIMEOUT_S) as client:
            answer = client.request("POST", _TARGET, content_type=_CONTENT_TYPE, body=b"x" * 100)
            return answer.status == 204
        return False


class Row(NamedTuple):
    """A line of the table."""

    what: str
    single: str = "–"
    three: str = "–"
    ratio: str = "–"
    bar: str = "–"


def wait_until(condition: Callable[[], bool], what: str) -> float:
    """Poll; return the seconds it took. Raises `BenchError` when it takes too long."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > _DEADLINE_S:
            raise BenchError(f"not within {_DEADLINE_S:.0f} s: {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - started


class Trio:
    """Three nodes of one cluster, and later a fourth."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes = [Node(node_id, directory / f"node{node_id}") for node_id in (1, 2, 3)]
        self._routes = [node.peer_port for node in self.nodes]

    def start(self, node: Node) -> None:
        node.start(self._routes)

    def leader(self) -> Node:
        """Wait for the leader of the latest term that any node knows."""
        found: list[Node] = []

        def is_led() -> bool:
            told = [(node, node.status()) for node in self.nodes if node.process is not None]
            latest = max((status.get("term", 0) for _, status in told), default=0)
            found[:] = [
                node
                for node, status in told
                if status.get("role") == "leader" and status["term"] == latest
            ]
            return bool(found)

        wait_until(is_led, "a leader")
        return found[0]

    def followers(self) -> list[Node]:
        leader = self.leader()
        return [node for node in self.nodes if node is not leader]

    def wait_ready(self) -> None:
        for node in self.nodes:
            wait_until(node.is_ready, f"node {node.node_id} ready")


@contextmanager
def running(directory: Path) -> Iterator[tuple[Node, Trio]]:
    """A single node and a cluster, each with the stream that is appended to."""
    shutil.rmtree(directory, ignore_errors=True)
    with ExitStack() as stack:
        single, trio = Node(1, directory / "single"), Trio(directory)
        for node in (single, *trio.nodes):
            stack.callback(node.kill)
        single.start([])
        for node in trio.nodes:
            trio.start(node)
        wait_until(single.is_ready, "the single node ready")
        trio.wait_ready()
        for node in (single, trio.nodes[0]):
            with Client(node.port) as client:
                client.request("PUT", _TARGET, content_type=_CONTENT_TYPE)
        yield single, trio
        for node in trio.nodes:
            node.kill()


def rate(node: Node, connections: int, duration_s: float) -> wrk.WrkResult:
    return wrk.load(
        node.url,
        connections=connections,
        duration_s=duration_s,
        core=None,
        script="append.lua",
        arguments=(100,),
    )


def quorum(single: Node, trio: Trio, rounds: int, duration_s: float) -> list[Row]:
    """Rate and latency of both, alternating."""
    figures: dict[tuple[str, int], list[wrk.WrkResult]] = {}
    for number in range(rounds):
        for connections in (1, 64):
            leader = trio.leader()
            for name, node in (("single", single), ("three", leader)):
                result = rate(node, connections, duration_s)
                figures.setdefault((name, connections), []).append(result)
                latency = result.latency_ms[50.0]
                click.echo(
                    f"round {number + 1}/{rounds} {name}, {connections} connections: "
                    f"{result.rate_per_s:,.0f}/s, p50 {latency:.2f} ms",
                    err=True,
                )

    def median(name: str, connections: int, value: Callable[[wrk.WrkResult], float]) -> float:
        return statistics.median(value(result) for result in figures[name, connections])

    rates = [median(name, 64, lambda r: r.rate_per_s) for name in ("single", "three")]
    p50s = [median(name, 1, lambda r: r.latency_ms[50.0]) for name in ("single", "three")]
    return [
        Row(
            "append 100 B, 64 connections",
            f"{rates[0]:,.0f}/s",
            f"{rates[1]:,.0f}/s",
            f"{rates[1] / rates[0]:.2f}×",
            "≥ 0.6×",
        ),
        Row(
            "append 100 B, 1 connection, p50",
            f"{p50s[0]:.2f} ms",
            f"{p50s[1]:.2f} ms",
            f"{p50s[1] / p50s[0]:.1f}×",
            "≤ 2×",
        ),
    ]


def failover(trio: Trio, times: int) -> list[Row]:
    """What the clients of all three nodes see when the leader is killed."""
    outages_s: list[float] = []
    others: Counter[str] = Counter()
    lost = doubled = 0
    for number in range(times):
        leader = trio.leader()
        survivors = trio.followers()
        target = f"/v1/stream/failover{number}"
        with Client(leader.port) as client:
            client.request("PUT", target, content_type=_CONTENT_TYPE)
        appenders = {
            node: [
                Appender(node.port, target, _CONTENT_TYPE, f"{node.node_id}.{client}")
                for client in range(_CLIENTS)
            ]
            for node in trio.nodes
        }
        time.sleep(1.0)
        leader.kill()
        killed_at = time.monotonic()
        for node in survivors:
            wait_until(lambda: _appends_since(appenders[node], killed_at + 0.5), "an append")  # noqa: B023
        time.sleep(0.5)
        everyone = [one for those in appenders.values() for one in those]
        for one in everyone:
            one.stop()
        for one in everyone:
            one.thread.join()
        gaps_s = [longest_gap_s(appenders[node], killed_at) for node in survivors]
        outages_s += gaps_s
        for node in survivors:
            for one in appenders[node]:
                others += one.others
        there = records_at(survivors[0].port, target)
        lost += sum(not there[record] for one in everyone for _, record in one.acknowledged)
        doubled += sum(count > 1 for count in there.values())
        click.echo(
            "leader killed: survivors append again after "
            + " and ".join(f"{gap_s:.2f} s" for gap_s in gaps_s)
            + f"; {sum(len(one.acknowledged) for one in everyone)} acknowledged, {lost} lost, "
            f"{doubled} there twice, other answers of survivors: {dict(others)}",
            err=True,
        )
        trio.start(leader)
        trio.wait_ready()
    timeouts = [outage_s * 1000 / _ELECTION_TIMEOUT_MS for outage_s in outages_s]
    return [
        Row(
            f"leader killed: outage at a survivor in election timeouts ({_ELECTION_TIMEOUT_MS} ms)",
            three=f"{statistics.median(timeouts):.2f}, worst of {len(timeouts)}: "
            f"{max(timeouts):.2f}",
            bar="≤ 2",
        ),
        Row(
            "leader killed: appends through survivors of unknown outcome; there twice; lost",
            three=f"{others['OUTCOME_UNKNOWN']}; {doubled}; {lost}",
            bar="0; 0; 0",
        ),
    ]


def _appends_since(appenders: Sequence[Appender], moment: float) -> bool:
    return any(one.acknowledged and one.acknowledged[-1][0] > moment for one in appenders)


def lagging_follower(trio: Trio, records: int, duration_s: float) -> list[Row]:
    """The leader's rate while a follower that missed this many appends gets a snapshot."""
    leader = trio.leader()
    lagging = trio.followers()[0]
    whole = rate(leader, 64, duration_s)
    lagging.kill()
    missed = 0
    while missed < records:
        missed += rate(leader, 64, 10).requests
        click.echo(f"{missed:,} appends missed", err=True)
    without = rate(leader, 64, duration_s)
    started = time.monotonic()
    trio.start(lagging)
    during: list[float] = []
    while not during or not lagging.is_ready():
        during.append(rate(leader, 64, 2).rate_per_s)
        if time.monotonic() - started > _DEADLINE_S:
            raise BenchError("the follower did not catch up under load")
    took_s = time.monotonic() - started
    status = lagging.status()
    how = "by snapshot" if status["first_log_index"] > 1 else "from the log"
    during_per_s = statistics.mean(during)
    return [
        Row(
            f"64 connections while a follower that missed {missed + without.requests:,} appends "
            f"catches up {how} in {took_s:.1f} s",
            three=f"{during_per_s:,.0f}/s; {whole.rate_per_s:,.0f}/s with all three up, "
            f"{without.rate_per_s:,.0f}/s without it",
            ratio=f"{during_per_s / whole.rate_per_s:.2f}×",
            bar="≥ 0.7×",
        )
    ]


def joining(trio: Trio) -> list[Row]:
    """Appends while a fourth node becomes a voter and then the leader is removed."""
    newcomer = Node(4, trio.directory / "node4")
    trio.nodes.append(newcomer)
    trio.start(newcomer)
    stop = threading.Event()
    gaps_s: list[float] = [0.0]

    def append_for_ever() -> None:
        last = time.monotonic()
        while not stop.is_set():
            for node in list(trio.nodes):
                if node.process is not None and node.appends():
                    now = time.monotonic()
                    gaps_s.append(now - last)
                    last = now
                    break

    writer = threading.Thread(target=append_for_ever)
    writer.start()
    try:
        leader = trio.leader()
        address = f"127.0.0.1:{newcomer.peer_port}"
        wait_until(lambda: leader.ask("/cluster/add", {"address": address})[0] == 200, "added")
        promote: dict[str, object] = {"node_id": 4}
        wait_until(lambda: leader.ask("/cluster/promote", promote)[0] == 200, "promoted")
        joined_s = max(gaps_s)
        remove: dict[str, object] = {"node_id": leader.node_id}
        leader.ask("/cluster/remove", remove)
        wait_until(lambda: 4 in newcomer.status().get("voters", []), "the fourth is a voter")
        wait_until(lambda: leader.node_id not in newcomer.status()["voters"], "its removal")
        wait_until(lambda: newcomer.status()["leader_id"] not in (None, leader.node_id), "a leader")
        appended = len(gaps_s)
        wait_until(lambda: len(gaps_s) > appended + 10, "appends after it")
    finally:
        stop.set()
        writer.join()
    return [
        Row(
            "a fourth node becomes a voter: longest time without an append",
            three=f"{joined_s:.2f} s",
            bar="one retry",
        ),
        Row(
            "the leader is removed: longest time without an append",
            three=f"{max(gaps_s):.2f} s",
            bar="one retry",
        ),
    ]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=3, show_default=True)
@click.option("--duration-s", default=5.0, show_default=True)
@click.option("--failovers", default=5, show_default=True)
@click.option("--missed", default=1_000_000, show_default=True, help="Appends a follower misses.")
def main(rounds: int, duration_s: float, failovers: int, missed: int) -> None:
    """Measure a cluster of three on this machine beside a single node."""
    wrk.require()
    rows = [Row("measurement", "single node", "three nodes", "ratio", "bar"), Row(*["---"] * 5)]
    try:
        with running(_DATA_DIR) as (single, trio):
            rows += quorum(single, trio, rounds, duration_s)
            single.kill()
            rows += failover(trio, failovers)
            rows += lagging_follower(trio, missed, duration_s)
            rows += joining(trio)
    finally:
        click.echo("\n".join("| " + " | ".join(row) + " |" for row in rows))


if __name__ == "__main__":
    main()
