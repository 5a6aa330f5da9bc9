"""`streamd tail -f` and `append` over servers that stop and return."""

from __future__ import annotations

import http.client
import itertools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.client.running import Shell, heard
from tests.support.server_process import ServerProcess


def append(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)


@pytest.mark.parametrize(
    ("kind", "live"),
    [
        ("json", "auto"),
        pytest.param("bytes", "sse", marks=pytest.mark.long),
        pytest.param("text", "auto", marks=pytest.mark.long),
        pytest.param("json", "long-poll", marks=pytest.mark.long),
    ],
)
def test_a_tail_survives_restarts_without_loss_or_repetition(
    tmp_path: Path, kind: str, live: str
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        streamd = Shell(server.url)
        streamd("create", "demo/news", "-t", kind)
        streamd("append", "demo/news", "--lines", given=b"1\n2\n")
        with streamd.started("tail", "-f", "-n", "1", "--live", live, "demo/news") as reader:
            assert heard(reader, 2) == b"2\n"
            for round_, stop in enumerate((server.kill, server.stop), start=3):
                stop()
                server.start()
                server.wait_ready()
                line = b"%d\n" % round_
                streamd("append", "demo/news", "--lines", given=line)
                assert heard(reader, 2) == line
            streamd("close", "demo/news")
            assert reader.wait(60) == 0
            assert reader.stdout is not None
            assert reader.stdout.read() == b""


def test_an_append_of_lines_survives_restarts_and_stores_each_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        streamd = Shell(server.url)
        streamd("create", "log", "-t", "json")
        with (
            streamd.started("append", "log", "--lines", "--close") as writer,
            streamd.started("tail", "-f", "log") as reader,
        ):
            append(writer, b"1\n")
            assert heard(reader, 2) == b"1\n"
            server.kill()
            append(writer, b"2\n")
            server.start()
            server.wait_ready()
            assert heard(reader, 2) == b"2\n"
            assert writer.stdin is not None
            writer.stdin.close()
            assert writer.wait(60) == 0
            assert reader.wait(60) == 0
        assert streamd("read", "log") == b"1\n2\n"


def test_an_append_whose_answer_is_lost_is_sent_again_and_stored_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        direct = Shell(server.url)
        direct("create", "log", "-t", "json")
        with losing_answers(server.port) as (url, lost):
            streamd = Shell(url)
            streamd("append", "log", given=b'["whole"]')
            streamd("append", "log", "--lines", "--close", given=b"1\n2\n")
        assert lost == ["POST"] * 3, "of each append, and of the close"
        assert direct("read", "log") == b'"whole"\n1\n2\n'


@contextmanager
def losing_answers(port: int) -> Iterator[tuple[str, list[str]]]:
    """A proxy that forwards every POST, but only every other answer."""
    lost: list[str] = []
    posts = itertools.count()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if self.command == "POST" and next(posts) % 2 == 0:
                lost.append(self.command)
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}", lost
        finally:
            proxy.shutdown()
            thread.join()


def test_a_tail_of_text_is_exact_to_the_byte(tmp_path: Path) -> None:
    content = "one\r\ntwo\rä".encode()[:-1] + b"\xff"
    with ServerProcess(tmp_path / "data") as server:
        streamd = Shell(server.url)
        streamd("create", "text")
        with streamd.started("tail", "-f", "text") as reader:
            streamd("append", "text", given=content)
            assert heard(reader, len(content)) == content


def test_a_tail_ends_when_its_stream_is_deleted(tmp_path: Path) -> None:
    for live in ("sse", "long-poll"):
        with ServerProcess(tmp_path / live) as server:
            streamd = Shell(server.url)
            streamd("create", "brief")
            streamd("append", "brief", given=b"x")
            with streamd.started("tail", "-f", "--live", live, "brief") as reader:
                heard(reader, 1)
                streamd("delete", "brief")
                assert reader.wait(60) == 1
                assert reader.stderr is not None
                assert b"404 STREAM_NOT_FOUND" in reader.stderr.read()


def test_an_append_fails_after_its_time_limit(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        streamd = Shell(server.url)
        streamd("create", "log")
        with (
            streamd.started("append", "log", "--lines", "--retry-for", "0.5") as writer,
            streamd.started("tail", "-f", "log") as reader,
        ):
            append(writer, b"one\n")
            heard(reader, 4)
            server.kill()
            append(writer, b"two\n")
            assert writer.wait(60) == 3


@pytest.mark.long
def test_large_streams_pass_through_little_memory(tmp_path: Path) -> None:
    given, into = tmp_path / "given", tmp_path / "into"
    peaks_kb: list[int] = []
    with ServerProcess(tmp_path / "data") as server:
        streamd = Shell(server.url)
        # The first is the command's own memory, which differs between Pythons.
        for name, size_mb in (("small", 8), ("large", 96)):
            with given.open("wb") as file:
                file.truncate(size_mb << 20)
            streamd("create", name, "-t", "bytes")
            appending_kb = streamd.peak_memory_kb("append", name, given=given, into=into)
            reading_kb = streamd.peak_memory_kb("read", name, given=given, into=into)
            assert into.stat().st_size == given.stat().st_size
            peaks_kb.append(max(appending_kb, reading_kb))
    assert peaks_kb[1] < peaks_kb[0] + 8_000
