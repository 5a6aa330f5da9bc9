"""A disk that fails or is full stops the server, and nothing acknowledged is lost."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest

from tests.crash.strace import injecting, needs_strace
from tests.support.server_process import ServerProcess

_PATH = "/v1/stream/disk/faults"
_MOST = 400


def _append_until_it_fails(port: int) -> list[bytes]:
    """Append to a new stream one by one. Returns the acknowledged appends."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Content-Type": "text/plain"}
    acknowledged: list[bytes] = []
    try:
        connection.request("PUT", _PATH, headers=headers)
        assert connection.getresponse().read() == b""
        for number in range(_MOST):
            part = b"<%d>" % number
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
    connection.request("GET", f"{_PATH}?offset=-1")
    body = connection.getresponse().read()
    connection.close()
    return body


@needs_strace
@pytest.mark.parametrize(
    ("syscall", "error", "words", "from_occurrence"),
    [
        ("fdatasync", "EIO", "Input/output error", 40),
        ("fdatasync", "ENOSPC", "No space left on device", 40),
        ("write", "EIO", "Input/output error", 90),
        ("write", "ENOSPC", "No space left on device", 90),
    ],
)
def test_a_failing_disk_stops_the_server_and_nothing_acknowledged_is_lost(
    syscall: str, error: str, words: str, from_occurrence: int, tmp_path: Path
) -> None:
    wrapper = injecting(syscall, f"error={error}", f"{from_occurrence}+", tmp_path / "trace")
    with ServerProcess(tmp_path / "data", wrapper=wrapper) as server:
        acknowledged = _append_until_it_fails(server.port)
        status = server.wait()
    assert 0 < len(acknowledged) < _MOST
    assert status == 1
    assert words in server.output
    assert "Nothing was acknowledged after this" in server.output

    with ServerProcess(tmp_path / "data") as repaired:
        content = _content(repaired.port)
    whole = b"".join(acknowledged)
    under_way = b"<%d>" % len(acknowledged)
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


def _log_files(data_dir: Path) -> list[Path]:
    files = sorted((data_dir / "log").glob("*.log")) + sorted((data_dir / "log").glob("*.ldb"))
    return [file for file in files if file.stat().st_size > 5000]


def _refusal(data_dir: Path) -> str:
    server = ServerProcess(data_dir)
    server.start()
    assert server.wait() == 1, server.output
    return server.output


def test_a_flipped_bit_in_the_log_is_found_at_the_start_and_not_served(tmp_path: Path) -> None:
    _run_and_stop(tmp_path / "data")
    (file,) = _log_files(tmp_path / "data")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)
    output = _refusal(tmp_path / "data")
    assert "corrupt" in output or "damaged" in output
    assert "Restore the data directory" in output


def test_a_log_cut_short_is_found_at_the_start_and_not_served(tmp_path: Path) -> None:
    _run_and_stop(tmp_path / "data")
    (file,) = _log_files(tmp_path / "data")
    file.write_bytes(file.read_bytes()[:-700])
    output = _refusal(tmp_path / "data")
    assert "acknowledged writes are missing" in output


def test_a_log_that_was_moved_away_is_not_mistaken_for_a_new_one(tmp_path: Path) -> None:
    _run_and_stop(tmp_path / "data")
    (tmp_path / "data" / "log").rename(tmp_path / "elsewhere")
    assert "acknowledged writes are missing" in _refusal(tmp_path / "data")
