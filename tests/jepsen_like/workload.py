"""A run: clients at work while a test breaks things, and the verdict afterwards."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tests.jepsen_like import history
from tests.jepsen_like.checker import check
from tests.jepsen_like.clients import (
    TEXT,
    Appender,
    Client,
    Connection,
    Follower,
    NoAnswer,
    NotSent,
    Producer,
    Reader,
    SharedByClients,
    ShortLived,
    now_ns,
    path_of,
)
from tests.jepsen_like.cluster_processes import ClusterProcesses, wait_until
from tests.jepsen_like.deliveries import fault_in_delivery
from tests.jepsen_like.findings import Report
from tests.jepsen_like.history import Operation, Recorder
from tests.jepsen_like.impatient_clients import ImpatientClient
from tests.support.repeating import served

# The duration of a fault, and of each stretch of work around it.
PHASE_S = float(os.environ.get("JEPSEN_S", "1.2"))
# From healing until each client has had an answer again.
_PROGRESS_BOUND_S = 20.0


class Workload:
    """All clients of a run. `report` and `operations` are there when the run is over."""

    def __init__(self, cluster: ClusterProcesses, recorder: Recorder) -> None:
        self._cluster = cluster
        cluster.runs += 1
        self._streams = [f"jepsen/one{cluster.runs}", f"jepsen/two{cluster.runs}"]
        ports = {node_id: node.client_port for node_id, node in cluster.nodes.items()}
        self.shared = SharedByClients(ports, recorder)
        self.followers: list[Follower] = []
        self._writers: list[Client] = []
        self._readers: list[Client] = []
        self._short_lived: list[ShortLived] = []
        # They never see a success.
        self._impatient: list[Client] = []
        self._leaving: set[str] = set()
        self.report = Report()
        self.operations: list[Operation] = []

    @property
    def counts(self) -> Counter[str]:
        return self.shared.counts

    def start(self) -> None:
        """Create the streams and start all clients."""
        self._create_streams()
        shared, ids = self.shared, list(self.shared.ports)
        self._writers += [Appender(shared, f"appender{i}", i, pinned=True) for i in ids]
        for number, stream in enumerate(self._streams):
            node_id = ids[number % len(ids)]
            self._writers.append(Producer(shared, f"producer{number}", node_id, stream))
            self.followers.append(Follower(shared, f"follower{number}", node_id, stream))
        self._short_lived.append(ShortLived(shared, f"short{self._cluster.runs}", ids[-1]))
        self._writers += self._short_lived
        self._impatient.append(ImpatientClient(shared, "impatient", ids[0]))
        self._readers += [Reader(shared, f"reader{i}", i, pinned=True) for i in ids]
        for client in self._clients():
            client.start()

    def _create_streams(self) -> None:
        connection = Connection(min(self.shared.ports.items())[1], timeout_s=20)
        for stream in self._streams:
            pending = self.shared.recorder.invoke("setup", "create", stream)
            reply = served(lambda stream=stream: connection.ask("PUT", path_of(stream), TEXT))
            assert reply.status in (200, 201), reply
            pending.ok(next_offset=reply.next_offset)
            self.shared.streams.append(stream)
        connection.close()

    def _clients(self) -> list[Client]:
        return [*self._writers, *self._readers, *self.followers, *self._impatient]

    def send_clients_to(self, node_id: int) -> None:
        """A node has been added: roaming clients may go there, and it gets a reader of its own."""
        self.shared.ports[node_id] = self._cluster.nodes[node_id].client_port
        self.shared.open_to_all.add(node_id)
        reader = Reader(self.shared, f"reader{node_id}", node_id, pinned=True)
        self._readers.append(reader)
        reader.start()

    def send_clients_away_from(self, node_id: int) -> None:
        """A node is about to be removed from the cluster: clients that stayed with it roam as soon
        as a request fails."""
        self._leaving.add(f"n{node_id}")
        self.shared.open_to_all.discard(node_id)
        for client in self._clients():
            if client.node_id == node_id:
                client.pinned = False

    # -- during the run -----------------------------------------------------------------------

    def work(self, seconds: float = PHASE_S) -> None:
        """Let the clients work for a while."""
        self.shared.stopping.wait(seconds)

    def wait_progress(self, clients: list[Client] | None = None) -> float:
        """Wait until each client has been served again; returns the seconds that took."""
        began_ns = now_ns()
        waiting = clients or [*self._writers, *self._readers]
        for client in waiting:
            wait_until(
                lambda client=client: client.last_success_ns > began_ns or self._has_problem(),
                f"{client.label} served again",
                _PROGRESS_BOUND_S,
            )
        return (now_ns() - began_ns) / 1e9

    def wait_writes_elsewhere(self, *node_ids: int) -> None:
        """Wait until appends through other nodes than these have been acknowledged again."""
        writers = [w for w in self._writers if w.pinned and w.node_id not in node_ids]
        self.wait_progress(writers)

    def wait_followers_at(self, node_id: int) -> None:
        """Wait until all live readers follow at one node."""
        for follower in self.followers:
            wait_until(
                lambda follower=follower: follower.connected_to == node_id,
                f"{follower.label} at node {node_id}",
            )

    def _has_problem(self) -> bool:
        return bool(self.shared.problems)

    # -- its end ------------------------------------------------------------------------------

    def finish(self) -> None:
        """Stop the writers, wait until live readers have everything, and stop."""
        self.shared.no_more_writes.set()
        for writer in [*self._writers, *self._impatient]:
            writer.join()
        for follower in self.followers:
            wait_until(
                lambda follower=follower: follower.offset == self._tail(follower.stream),
                f"{follower.label}, at node {follower.node_id}, has seen all of {follower.stream}",
            )

    def stop(self) -> None:
        """Stop all clients at once."""
        self.shared.no_more_writes.set()
        self.shared.stopping.set()
        for client in self._clients():
            client.join()

    def _tail(self, stream: str) -> str:
        connection = Connection(self._cluster.alive[0].client_port)
        try:
            return connection.ask("HEAD", path_of(stream), {}).next_offset
        except (NotSent, NoAnswer):
            return ""
        finally:
            connection.close()

    def read_finally(self) -> None:
        """Read every stream in full, from every node that runs."""
        for node in self._cluster.alive:
            connection = Connection(node.client_port, timeout_s=20)
            for stream in [*self._streams, *(s for c in self._short_lived for s in c.streams)]:
                self._read_whole(connection, stream, f"n{node.node_id}")
            connection.close()

    def _read_whole(self, connection: Connection, stream: str, node: str) -> None:
        pending = self.shared.recorder.invoke(f"final {node}", "final_read", stream, node=node)
        data, offset = b"", "-1"
        while True:
            page = f"{path_of(stream)}?offset={offset}"
            reply = served(lambda page=page: connection.ask("GET", page, {}))
            if reply.status == 404:
                pending.fail(history.NOT_FOUND)
                return
            assert reply.status == 200, (stream, reply)
            data, offset = data + reply.body, reply.next_offset
            if reply.says("Stream-Up-To-Date"):
                closed = reply.says("Stream-Closed")
                pending.ok(data=data, next_offset=offset, up_to_date=True, closed=closed)
                return

    # -- queries on the history ---------------------------------------------------------------

    def acknowledged(self, from_ns: int, to_ns: int) -> int:
        """How many appends were sent and acknowledged within an interval."""
        return sum(
            o.kind == "append"
            and o.outcome == "ok"
            and from_ns < o.invoked_ns
            and o.returned_ns < to_ns
            for o in self.operations
        )

    def first_append_after(self, moment_ns: int) -> float:
        """Seconds from a moment to the first acknowledgement of an append sent after it."""
        returned = [
            o.returned_ns
            for o in self.operations
            if o.kind == "append" and o.outcome == "ok" and o.invoked_ns > moment_ns
        ]
        return (min(returned) - moment_ns) / 1e9

    def judge(self, path: Path) -> Report:
        """Check the history at `path`, which holds everything that the clients did."""
        self.operations = history.load([path])
        self.report = check(self.operations, self._leaving)
        return self.report

    def longest_gap(self) -> float:
        """The longest time without an acknowledged append, in seconds."""
        moments = sorted(
            o.returned_ns for o in self.operations if o.kind == "append" and o.outcome == "ok"
        )
        return max(later - one for one, later in pairwise(moments)) / 1e9

    def assert_delivered_once(self) -> None:
        """Each live reader got the stream, piece after piece."""
        faults = [
            fault_in_delivery(self.operations, follower.client, follower.stream)
            for follower in self.followers
        ]
        assert not any(faults), "\n".join(faults)


@contextmanager
def under_load(cluster: ClusterProcesses) -> Iterator[Workload]:
    """Work inside, heal at the end, and judge: no finding, progress for each client, all nodes at
    the same entry, everything delivered live. The history stays in the cluster's directory."""
    path = cluster.directory / f"history{cluster.runs + 1}.jsonl"
    try:
        with Recorder(path) as recorder:
            workload = Workload(cluster, recorder)
            try:
                workload.start()
                yield workload
                cluster.links.heal()
                recovery_s = workload.wait_progress()
                workload.finish()
            finally:
                workload.stop()
            assert not workload.shared.problems, workload.shared.problems
            for node in cluster.nodes.values():
                assert "Traceback" not in node.output, f"node {node.node_id} broke inside"
            cluster.wait_converged()
            workload.read_finally()
        _judge(workload, path, recovery_s)
    except BaseException:
        print(f"the history is in {path}, beside all that the nodes printed")
        raise


def pause_leader(cluster: ClusterProcesses, work: Workload) -> None:
    """Stop the leader's process until another one leads and has accepted writes; then let it go on,
    and wait until all nodes are ready."""
    leader = cluster.leader()
    leader.pause()
    try:
        cluster.leader(but=leader.node_id)
        work.wait_writes_elsewhere(leader.node_id)
        work.work()
    finally:
        leader.resume()
    cluster.wait_ready()


def _judge(workload: Workload, path: Path, recovery_s: float) -> None:
    report = workload.judge(path)
    _tell(report, workload.counts, recovery_s)
    findings = [str(finding) for finding in report.findings]
    assert report.is_valid, "\n".join([f"{len(findings)} findings in {path}", *findings[:10]])
    _assert_not_hollow(report, workload.counts)
    workload.assert_delivered_once()


def _tell(report: Report, counts: Counter[str], recovery_s: float) -> None:
    both = {**report.counts, **counts}
    told = ", ".join(f"{count} {what}" for what, count in sorted(both.items()) if count)
    print(f"all clients served {recovery_s:.1f} s after healing; {told}")


def _assert_not_hollow(report: Report, client_counts: Counter[str]) -> None:
    """A run without findings proves something only if it did something."""
    for what in ("left in mid-append", "left before the answer"):
        assert client_counts[what], f"hollow: nobody {what}"
    counts = report.counts
    for what, least in (("append ok", 50), ("read ok", 30), ("head ok", 10), ("deliver ok", 10)):
        assert counts[what] >= least, f"hollow: {counts[what]} {what}"
    assert counts["final_read ok"] >= 2
