"""Commands on streams, one process each, as command-line tools on the npm client run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.official_clients.test_npm_client import DEADLINE_S, HERE, running
from tests.support.server_process import ServerProcess
from tests.support.tools import node_or_skip

pytestmark = pytest.mark.long

# Frames of a proxy that stores answers: any bytes, cut anywhere.
FRAMES = [
    b"S\0\0\0\x02{}",
    b"D\0\0\0\xff" + bytes(range(255)),
    "\N{BALLOON}".encode()[:2],
    b"C\0\0\0\0",
]


def command(name: str, url: str, *arguments: str, given: bytes = b"") -> tuple[int, bytes, str]:
    """Run a command. Returns its exit status and its output."""
    node_or_skip()
    done = subprocess.run(
        ["node", "command.mjs", name, url, *arguments],
        cwd=HERE,
        input=given,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    return done.returncode, done.stdout, done.stderr.decode()


DONE = (0, b"", "")
JSON = "application/json"


@pytest.fixture(name="root", scope="module")
def _root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(tmp_path_factory.mktemp("commands")) as server:
        yield f"{server.url}/v1/stream"


def test_live_reads_get_everything_that_was_written(root: str) -> None:
    url = f"{root}/proxied/answer"
    assert command("create", url) == DONE
    for frame in FRAMES:
        assert command("write", url, given=frame) == DONE
    httpx.post(url, headers={"Stream-Closed": "true"})
    assert command("read", url) == (0, b"".join(FRAMES), "")
    assert command("delete", url) == DONE
    status, _, told = command("read", url)
    assert (status, "404" in told) == (1, True)


def test_a_reader_follows_writes_until_the_close(root: str) -> None:
    url = f"{root}/followed"
    assert command("create", url, JSON) == DONE
    assert command("write", url, JSON, given=b'{"n":1}') == DONE
    with running("command.mjs", "read", url) as reader:
        httpx.post(url, headers={"Stream-Closed": "true"})
        assert reader.status() == 0
    status, read, _ = command("read", url)
    assert (status, read) == (0, b'[{"n":1}]')
    status, _, told = command("write", url, JSON, given=b"2")
    assert (status, "closed" in told.lower()) == (1, True)


@pytest.mark.parametrize("name", ["my-group/my.stream:1_x-Y", "x" * 256])
def test_names_that_the_command_line_takes_are_streams(root: str, name: str) -> None:
    url = f"{root}/{name}"
    assert [command("create", url, JSON) for _ in range(2)] == [DONE, DONE]
    assert command("batch", url, JSON, given=b'[1,[2,3],{"n":"\xc3\xbc"}]') == DONE
    answer = httpx.get(url)
    assert answer.headers["content-type"] == JSON
    assert answer.json() == [1, [2, 3], {"n": "ü"}]


def test_commands_on_streams_that_are_not_there_fail(root: str) -> None:
    for name in ("write", "delete"):
        status, _, told = command(name, f"{root}/missing", given=b"x")
        assert (status, "404" in told) == (1, True)
