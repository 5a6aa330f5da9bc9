"""`streamd tail -f` and `append` over servers that go away and come back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.running import Shell, heard
from tests.support.server_process import ServerProcess


def append(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("kind", ["json", "text", "bytes"])
def test_a_tail_goes_on_over_restarts_without_loss_or_repetition(
    tmp_path: Path, live: str, kind: str
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


def test_an_append_of_lines_goes_on_over_restarts_and_stores_each_once(tmp_path: Path) -> None:
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


def test_an_append_whose_answer_was_lost_is_not_stored_twice(tmp_path: Path) -> None:
    """The server is stopped while the append is under way, and killed with it unanswered."""
    with ServerProcess(tmp_path / "data") as server:
        streamd = Shell(server.url)
        streamd("create", "log", "-t", "json")
        with streamd.started("append", "log", "--lines") as writer:
            append(writer, b"1\n")
            with streamd.started("tail", "-f", "log") as reader:
                assert heard(reader, 2) == b"1\n"
            for number in range(2, 12):
                append(writer, b"%d\n" % number)
                server.kill()
                server.start()
                server.wait_ready()
            assert writer.stdin is not None
            writer.stdin.close()
            assert writer.wait(60) == 0
        expected = b"".join(b"%d\n" % number for number in range(1, 12))
        assert streamd("read", "log") == expected


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


def test_an_append_gives_up_in_the_time_it_is_given(tmp_path: Path) -> None:
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


def test_reading_a_large_stream_keeps_little_of_it_in_memory(tmp_path: Path) -> None:
    size = 96 << 20
    with ServerProcess(tmp_path / "data") as server:
        streamd = Shell(server.url)
        streamd("create", "large", "-t", "bytes")
        for command in (
            f"head -c {size} /dev/zero | python -m streamd append large",
            "python -m streamd read large",
        ):
            peak_kb = _peak_memory_kb(command, streamd, tmp_path / "out")
            assert peak_kb < 100_000, command
        assert (tmp_path / "out").stat().st_size == size


def _peak_memory_kb(command: str, streamd: Shell, out: Path) -> int:
    """Run in a shell with `python` as ours; the peak of the largest process."""
    command = command.replace("python", sys.executable)
    with out.open("wb") as target:
        process = subprocess.Popen(["bash", "-c", command], env=streamd.environment, stdout=target)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss
