"""What wrk prints is parsed correctly, and a run with errors gives an error."""

from __future__ import annotations

import pytest

from bench import wrk
from bench.errors import RunFailed, ToolMissing

OUTPUT = """\
Running 5s test @ http://127.0.0.1:4437/v1/stream/one
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     4.93ms    1.20ms  21.07ms   88.10%
    Req/Sec    13.05k     1.02k   14.90k    76.00%
  64921 requests in 5.00s, 12.94MB read
Requests/sec:  12981.55
Transfer/sec:      2.59MB
latency 50% 912 us
latency 90% 5310 us
latency 99% 31250 us
latency 99.9% 1250000 us
"""


def with_line(line: str) -> str:
    return OUTPUT.replace("Requests/sec:", f"{line}\nRequests/sec:")


def test_rate_count_and_latencies_in_ms() -> None:
    result = wrk.parse(OUTPUT)
    assert result.requests == 64921
    assert result.rate_per_s == 12981.55
    assert result.latency_ms == pytest.approx({50: 0.912, 90: 5.31, 99: 31.25, 99.9: 1250})


def test_a_summary_without_latencies_is_an_error() -> None:
    with pytest.raises(RunFailed, match="no latencies"):
        wrk.parse(OUTPUT.replace("latency ", ""))


def test_a_run_without_errors_is_valid() -> None:
    assert wrk.parse(OUTPUT).failure() is None


def test_error_statuses_make_a_run_invalid() -> None:
    result = wrk.parse(with_line("  Non-2xx or 3xx responses: 121"))
    assert result.bad_statuses == 121
    assert result.failure() == "121 answers with an error status"


def test_socket_errors_make_a_run_invalid() -> None:
    result = wrk.parse(with_line("  Socket errors: connect 0, read 3, write 0, timeout 2"))
    assert result.socket_errors == {"connect": 0, "read": 3, "write": 0, "timeout": 2}
    assert result.failure() == "3 read errors, 2 timeout errors"


def test_a_run_without_answers_is_invalid() -> None:
    failure = wrk.parse(OUTPUT.replace("64921 requests", "0 requests")).failure()
    assert failure == "no request was answered"


@pytest.mark.parametrize("output", ["", "unable to connect to 127.0.0.1:1 Connection refused\n"])
def test_no_summary_is_an_error(output: str) -> None:
    with pytest.raises(RunFailed, match="no summary"):
        wrk.parse(output)


def test_an_error_for_a_missing_wrk_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolMissing, match="apt-get install wrk"):
        wrk.require()
