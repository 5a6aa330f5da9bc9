"""Workers as processes: what clients see of them, and how they end."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest

from streamd.auth.tokens import mint
from streamd.config.settings import AuthConfig, ClusterConfig, ColdConfig, Config
from streamd.workers.messages import encode
from streamd.workers.supervisor import MAX_SILENCE, for_a_worker
from tests.http.pki import make_pki
from tests.support.server_process import ServerProcess
from tests.workers.processes import (
    STREAM,
    TEXT,
    Client,
    connected,
    is_alive,
    on_each_worker,
    wait_until,
    with_workers,
    workers_of,
)

ALL = f"{STREAM}?offset=-1"
CLOSED = (OSError, http.client.HTTPException)


def test_all_workers_serve_the_same_streams(tmp_path: Path) -> None:
    with with_workers(tmp_path, 3) as server:
        clients = on_each_worker(server)
        clients[0].create()
        for number, client in enumerate(clients):
            client.append(b"%d," % number)
        assert [client.get(ALL) for client in clients] == [b"0,1,2,"] * 3
        assert clients[1].ask("DELETE", STREAM).read() == b""
        assert clients[2].head().status == 404


@pytest.mark.long
def test_a_read_sees_every_write_acknowledged_before_it(tmp_path: Path) -> None:
    """Both readers keep the answers that they get; each write must end them in time."""
    with with_workers(tmp_path) as server:
        writer, reader = on_each_worker(server)
        writer.create()
        expected = b""
        for number in range(400):
            data = b"%d," % number
            expected += data
            tail = writer.append(data)
            assert reader.get(ALL) == expected
            assert reader.get(ALL) == expected, "again, perhaps from what was kept"
            assert reader.head().headers["Stream-Next-Offset"] == tail
            reader.close()
            writer, reader = (reader, writer) if number % 50 == 49 else (writer, reader)


@pytest.mark.long
def test_concurrent_readers_never_go_back(tmp_path: Path) -> None:
    """What one reader has seen through one worker, the next read through another shows too."""
    with with_workers(tmp_path) as server:
        first, second = on_each_worker(server)
        first.create()
        done = threading.Event()

        def write() -> None:
            writer = Client(server)
            for _ in range(300):
                writer.append(b"x")
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        seen = reads = 0
        while not done.is_set():
            for reader in (first, second):
                size = len(reader.get(ALL))
                assert size >= seen
                seen = size
                reads += 1
        thread.join()
        assert len(first.get(ALL)) == 300
        assert reads > 10


@pytest.mark.long
def test_a_kept_answer_is_not_given_to_a_client_that_has_it(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        client, _ = on_each_worker(server)
        client.create()
        client.append(b"x")
        etag = client.ask("GET", ALL)
        etag.read()
        client.get(ALL)
        answer = client.ask("GET", ALL, headers={"If-None-Match": etag.headers["ETag"]})
        assert (answer.status, answer.read()) == (304, b"")


@pytest.mark.long
def test_events_reach_live_readers_at_every_worker(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        writer = Client(server)
        writer.create()
        readers = [
            client.ask("GET", f"{STREAM}?offset=-1&live=sse")
            for client in on_each_worker(server) + on_each_worker(server)
        ]
        for reader in readers:
            assert reader.readline() == b"event: control\n"
        for number in range(20):
            writer.append(b"event %d" % number)
            for reader in readers:
                while (line := reader.readline()) != b"data:event %d\n" % number:
                    assert line, "the response goes on"


@pytest.mark.long
def test_a_long_poll_waits_at_one_worker_for_a_write_at_another(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        writer, reader = on_each_worker(server)
        writer.create()
        write = threading.Timer(0.2, writer.append, [b"news"])
        write.start()
        answer = reader.ask("GET", f"{STREAM}?offset=now&live=long-poll")
        write.join()
        assert (answer.status, answer.read()) == (200, b"news")


@pytest.mark.long
def test_a_live_reader_that_leaves_is_noticed(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        client = Client(server)
        client.create()
        readers = on_each_worker(server) + on_each_worker(server)
        live = ("live=sse", "live=sse", "live=long-poll", "%6cive=long-poll")
        for query, reader in zip(live, readers, strict=True):
            reader.begin("GET", f"{STREAM}?offset=now&{query}")
        wait_until(lambda: live_readers(client) == [2, 2], "all four wait")
        for reader in readers:
            reader.close()
        wait_until(lambda: live_readers(client) == [0, 0], "all four have left")


def live_readers(client: Client) -> list[int]:
    found = re.findall(rb"^streamd_live_readers{.*} (\d+)", client.get("/metrics"), re.MULTILINE)
    return [int(count) for count in found]


@pytest.mark.long
def test_a_client_that_ends_its_side_first_gets_its_answers(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        client = Client(server)
        client.create()
        client.append(b"x" * 100_000)
        for query in (b"offset=-1", b"offset=now", b"offset=-1&max-bytes=1"):
            with socket.create_connection(("127.0.0.1", server.port)) as half:
                half.sendall(
                    b"GET %b?%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (STREAM.encode(), query)
                )
                half.shutdown(socket.SHUT_WR)
                answer = http.client.HTTPResponse(half)
                answer.begin()
                assert answer.status == 200
                assert len(answer.read()) == int(answer.headers["Content-Length"])


@pytest.mark.long
def test_large_bodies_pass_in_both_directions(tmp_path: Path) -> None:
    body = os.urandom(4_000_000)
    binary = {"Content-Type": "application/octet-stream"}
    with with_workers(tmp_path) as server:
        client = Client(server)
        assert client.ask("PUT", STREAM, body, binary).read() == b""
        tail = client.head().headers["Stream-Next-Offset"]
        assert client.get(f"{STREAM}?offset=-1&max-bytes=16000000") == body
        assert client.ask("PUT", "/demo-bucket").read() == b""
        assert client.ask("PUT", "/demo-bucket/s", body, binary).read() == b""
        snapshot = client.ask("PUT", f"/demo-bucket/s/snapshot/{tail}", body, binary)
        assert (snapshot.status, snapshot.read()) == (204, b"")
        assert client.get(f"/demo-bucket/s/snapshot/{tail}") == body


@pytest.mark.long
def test_a_client_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        clients = on_each_worker(server)
        clients[0].ask("PUT", STREAM, os.urandom(16_000_000), TEXT).read()
        stalled = []
        for _ in range(20):
            one = socket.create_connection(("127.0.0.1", server.port))
            request = (
                f"GET {STREAM}?offset=-1&max-bytes=16000000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            one.sendall(request.encode())
            assert one.recv(8) == b"HTTP/1.1"
            stalled.append(one)
        for client in clients:
            client.create(f"{STREAM}-{client.worker}")
        for one in stalled:
            one.close()


@pytest.mark.long
def test_metrics_are_those_of_all_workers(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        clients = on_each_worker(server)
        clients[0].create()
        for client in clients * 5:
            client.append(b"x")

        def counted() -> bool:
            text = clients[0].get("/metrics").decode()
            return (
                'streamd_http_requests_total{method="POST",route="stream",status="204"} 10.0'
                in text
                and "streamd_append_latency_seconds_count 10.0" in text
                and "streamd_workers 2.0" in text
            )

        wait_until(counted, "the other worker has said what it counted")


def test_a_killed_worker_costs_only_its_own_clients_their_connections(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        doomed, other = on_each_worker(server)
        victim = doomed.worker
        doomed.create()
        stop = threading.Event()
        appended: list[bytes] = []

        def write() -> None:
            while not stop.is_set():
                data = b"%d," % len(appended)
                other.append(data)
                appended.append(data)

        thread = threading.Thread(target=write)
        thread.start()
        wait_until(lambda: len(appended) > 20, "the other worker's client appends")
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(CLOSED):
            doomed.get(ALL)
        before = len(appended)
        wait_until(lambda: len(appended) > before + 20, "the other client goes on")
        wait_until(lambda: len(workers_of(server)) == 2, "another worker is started")
        clients = on_each_worker(server)
        stop.set()
        thread.join()
        assert victim not in [client.worker for client in clients]
        for client in clients:
            assert client.get(ALL) == b"".join(appended)
        restarts = re.findall(
            rb"^streamd_worker_restarts_total.* (\d)", clients[0].get("/metrics"), re.MULTILINE
        )
        assert sorted(restarts) == [b"0", b"1"]


@pytest.mark.long
def test_producers_lose_and_repeat_nothing_while_workers_are_killed(tmp_path: Path) -> None:
    count = 300
    with with_workers(tmp_path) as server:
        Client(server).create()

        def produce(name: str) -> None:
            client = connected(server)
            for seq in range(count):
                while True:
                    try:
                        answer = client.ask(
                            "POST", STREAM, f"{name}{seq},".encode(),
                            {**TEXT, "Producer-Id": name, "Producer-Epoch": "0",
                             "Producer-Seq": str(seq)},
                        )  # fmt: skip
                        answer.read()
                        assert answer.status in (200, 204), (answer.status, name, seq)
                        break
                    except CLOSED:
                        client = connected(server)

        threads = [threading.Thread(target=produce, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        kills = 0
        while any(thread.is_alive() for thread in threads):
            victims = workers_of(server)
            if len(victims) == 2 and kills < 6:
                os.kill(victims[kills % 2], signal.SIGKILL)
                kills += 1
            threads[0].join(0.3)
        for thread in threads:
            thread.join()
        assert kills >= 2
        records = connected(server).get(ALL).decode().split(",")[:-1]
        for name in "abcd":
            mine = [record for record in records if record.startswith(name)]
            assert mine == [f"{name}{seq}" for seq in range(count)]


@pytest.mark.long
def test_workers_end_with_the_process_that_has_the_group(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        workers = [client.worker for client in on_each_worker(server)]
        os.kill(workers[0], signal.SIGSTOP)
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, workers)), "both end, the stopped one too")
        server.wait_refusing()


@pytest.mark.long
def test_a_terminated_worker_finishes_its_requests_and_is_replaced(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        client, other = on_each_worker(server)
        client.create()
        events = client.ask("GET", f"{STREAM}?offset=-1&live=sse")
        assert events.readline() == b"event: control\n"
        waiting = on_each_worker(server)[workers_of(server).index(client.worker)]
        waiting.begin("GET", f"{STREAM}?offset=now&live=long-poll")
        wait_until(lambda: live_readers(other) == [1, 1], "both wait")
        ended = client.worker
        os.kill(ended, signal.SIGTERM)
        events.read()  # Raises if the response breaks off.
        assert waiting.answer().status == 204
        other.append(b"still served")
        wait_until(lambda: not is_alive(ended), "the worker ends")
        wait_until(lambda: len(workers_of(server)) == 2, "another takes its place")
        assert [one.get(ALL) for one in on_each_worker(server)] == [b"still served"] * 2
        assert server.stop() == 0
        assert "worker ended" in server.output


@pytest.mark.long
def test_a_stopped_worker_is_replaced_and_holds_up_nobody(tmp_path: Path) -> None:
    """A worker in an endless loop looks the same to the others."""
    with with_workers(tmp_path) as server:
        stuck, other = on_each_worker(server)
        other.create()
        watched = stuck.ask("GET", f"{STREAM}?offset=-1&live=sse")
        assert watched.readline() == b"event: control\n"
        victim = stuck.worker
        os.kill(victim, signal.SIGSTOP)
        for _ in range(50):
            other.append(b"x" * 50_000)
        assert is_alive(victim), f"not before it was silent for {MAX_SILENCE} s"
        wait_until(lambda: not is_alive(victim), "the silent worker is killed")
        wait_until(lambda: len(workers_of(server)) == 2, "another takes its place")
        assert len(on_each_worker(server)) == 2
        assert server.stop() == 0
        assert "worker is silent" in server.output


@pytest.mark.long
def test_a_worker_that_cannot_start_is_tried_again_and_again_but_not_often(tmp_path: Path) -> None:
    pki = make_pki(tmp_path)
    server = with_workers(
        tmp_path, SERVER_TLS_CERT=str(pki.certificate), SERVER_TLS_KEY=str(pki.key)
    )
    with server:
        away = pki.key.rename(tmp_path / "away")
        for pid in workers_of(server):
            os.kill(pid, signal.SIGKILL)
        server.wait_refusing()
        wait_until(lambda: len(workers_of(server)) == 2, "they are started, in vain")
        away.rename(pki.key)
        server.wait_ready()
        assert server.stop() == 0
    assert server.output.count("worker ended") < 20


@pytest.mark.long
def test_a_port_in_use_is_refused_though_workers_could_share_it(tmp_path: Path) -> None:
    with with_workers(tmp_path) as first:
        second = ServerProcess(tmp_path / "other", port=first.port, flags=["--workers", "2"])
        second.start()
        assert second.wait() == 2
        assert "server.listen" in second.output
        assert not (tmp_path / "other").exists()


@pytest.mark.long
def test_a_server_starts_again_at_once_at_the_same_port(tmp_path: Path) -> None:
    with with_workers(tmp_path) as server:
        client = Client(server)
        client.create()
        client.append(b"kept")
        assert server.stop() == 0
        server.start()
        server.wait_ready()
        assert Client(server).get(ALL) == b"kept"


@pytest.mark.long
def test_workers_are_given_no_secrets(tmp_path: Path) -> None:
    """They are the processes that strangers speak to, and need none."""
    secret = mint(1, b"root" * 5)
    file = tmp_path / "streamd.toml"
    file.write_text('[auth]\nroot_token = "$OPERATORS_TOKEN"\n')
    server = ServerProcess(
        tmp_path / "data",
        flags=["--config", str(file), "--workers", "2"],
        environment={"OPERATORS_TOKEN": secret, "AWS_SECRET_ACCESS_KEY": "of the store"},
    )
    with server:
        assert server.process is not None
        # The store's library reads its own variable when it needs it.
        assert secret.encode() not in Path(f"/proc/{server.process.pid}/environ").read_bytes()
        for pid in workers_of(server):
            for given in ("environ", "cmdline"):
                found = Path(f"/proc/{pid}/{given}").read_bytes()
                assert secret.encode() not in found
                assert b"of the store" not in found
    config = Config(
        cold=ColdConfig(s3_secret_access_key="of the store"),
        auth=AuthConfig(mode="required", root_token=secret),
        cluster=ClusterConfig(secret_file="of peers"),
    )
    sent = encode(for_a_worker(config))
    assert b"required" in sent
    for text in (secret, "of the store", "of peers"):
        assert text.encode() in encode(config)
        assert text.encode() not in sent


@pytest.mark.long
def test_a_server_that_is_interrupted_before_its_workers_are_ready_ends_quietly(
    tmp_path: Path,
) -> None:
    """The terminal sends the signal to the workers, too."""
    server = with_workers(tmp_path, 3)
    server.start()
    wait_until(lambda: len(workers_of(server)) == 3, "all are being started")
    wait_until(lambda: all(map(ignores_interrupts, workers_of(server))), "their code runs")
    server.signal(signal.SIGINT)
    assert server.wait() == 0
    assert "Traceback" not in server.output


def ignores_interrupts(pid: int) -> bool:
    found = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return bool(int(found[1], 16) & (1 << (signal.SIGINT - 1)))
