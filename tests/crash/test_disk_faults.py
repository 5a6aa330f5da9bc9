"""A disk that fails or is full stops the server, and nothing acknowledged is lost."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest

from tests.crash.strace import injecting, needs_strace
from tests.storage.images import newest_file
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

_PATH = "/v1/stream/disk/faults"
_MOST = 400
# More than goes through the log's journal.
_LARGE_BYTES = 300_000


def _part(number: int, size: int) -> bytes:
    return (b"<%d>" % number).ljust(size, b".")


def _append_until_it_fails(port: int, size: int) -> list[bytes]:
    """Append to a new stream one by one. Returns the acknowledged appends."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Content-Type": "text/plain"}
    acknowledged: list[bytes] = []
    try:
        connection.request("PUT", _PATH, headers=headers)
        assert connection.getresponse().read() == b""
        for number in range(_MOST):
            part = _part(number, size)
            connection.request("POST", _PATH, part, headers)
            response = connection.getresponse()
            response.read()
            if response.status != 204:
                break
            acknowledged.append(part)
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()
    return acknowledged


def _content(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body, offset, is_whole = b"", "-1", False
    while not is_whole:
        connection.request("GET", f"{_PATH}?offset={offset}")
        response = connection.getresponse()
        body += response.read()
        offset = response.headers["Stream-Next-Offset"]
        is_whole = response.headers["Stream-Up-To-Date"] == "true"
    connection.close()
    return body


@needs_strace
@pytest.mark.parametrize(
    ("syscall", "error", "words", "from_occurrence", "size"),
    [
        ("fdatasync", "EIO", "Input/output error", 40, 1),
        ("fdatasync", "ENOSPC", "No space left on device", 40, 1),
        ("pwrite64", "EIO", "Input/output error", 40, 1),
        ("pwrite64", "ENOSPC", "No space left on device", 40, 1),
        ("write", "EIO", "Input/output error", 90, _LARGE_BYTES),
        ("write", "ENOSPC", "No space left on device", 90, _LARGE_BYTES),
    ],
)
def test_a_failing_disk_stops_the_server_and_nothing_acknowledged_is_lost(
    syscall: str, error: str, words: str, from_occurrence: int, size: int, tmp_path: Path
) -> None:
    wrapper = injecting(syscall, f"error={error}", f"{from_occurrence}+", tmp_path / "trace")
    with ServerProcess(tmp_path / "data", wrapper=wrapper) as server:
        acknowledged = _append_until_it_fails(server.port, size)
        status = server.wait()
    assert 0 < len(acknowledged) < _MOST
    assert status == 1
    assert words in server.output
    assert "Nothing was acknowledged after this" in server.output

    with ServerProcess(tmp_path / "data") as repaired:
        content = _content(repaired.port)
    whole = b"".join(acknowledged)
    under_way = _part(len(acknowledged), size)
    assert content in (whole, whole + under_way)


def _run_and_stop(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for method, body in [("PUT", None), *[("POST", b"x" * 500)] * 50]:
            connection.request(method, _PATH, body, {"Content-Type": "text/plain"})
            response = connection.getresponse()
            response.read()
            assert response.status in (201, 204)
        connection.close()
        assert server.stop() == 0


def _refusal(data_dir: Path) -> str:
    server = ServerProcess(data_dir)
    server.start()
    assert server.wait() == 1, server.output
    return server.output


def test_a_flipped_bit_in_the_log_is_found_at_the_start_and_not_served(tmp_path: Path) -> None:
    _run_and_stop(tmp_path / "data")
    file, written = newest_file(tmp_path / "data")
    content = bytearray(file.read_bytes())
    content[written[len(written) // 2]] ^= 0x10
    file.write_bytes(content)
    output = _refusal(tmp_path / "data")
    assert "corrupt" in output or "damaged" in output
    assert "Restore the data directory" in output


def test_a_log_cut_short_is_found_at_the_start_and_not_served(tmp_path: Path) -> None:
    _run_and_stop(tmp_path / "data")
    file, written = newest_file(tmp_path / "data")
    file.write_bytes(file.read_bytes()[: written.stop - 1200])
    output = _refusal(tmp_path / "data")
    assert "log/journal is corrupt: it is cut short" in output


def test_a_log_that_was_moved_away_is_not_mistaken_for_a_new_one(tmp_path: Path) -> None:
    _run_and_stop(tmp_path / "data")
    (tmp_path / "data" / "log").rename(tmp_path / "elsewhere")
    assert "acknowledged writes are missing" in _refusal(tmp_path / "data")
