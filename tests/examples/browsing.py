"""A page in a real Chromium, which comes as an npm package."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.official_clients.test_npm_client import Script
from tests.support import tether

HERE = Path(__file__).parent


class Page:
    """A page. Methods return when the page has done it."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def open(self, url: str) -> None:
        self._order("open", url)

    def reload(self) -> None:
        self._order("reload")

    def type(self, selector: str, text: str) -> None:
        """Type a text and Enter."""
        self._order("type", selector, text)

    def wait(self, selector: str, texts: list[str]) -> None:
        """Wait until the elements that the selector finds have these texts, and no other is
        there."""
        self._order("wait", selector, texts)

    def _order(self, *order: object) -> None:
        self._script.tell(json.dumps(order))
        assert self._script.says() == "done", order


@contextmanager
def chromium() -> Iterator[Page]:
    """A page, in a browser of its own."""
    with started() as process:
        try:
            script = Script(process)
            yield Page(script)
            script.end_input()
            assert script.status() == 0
        finally:
            process.kill()


def started() -> subprocess.Popen[bytes]:
    """The script, when its browser runs: the first one unpacks Chromium, and others wait for it."""
    unpacked = HERE / "node_modules" / ".chromium"
    unpacked.mkdir(exist_ok=True)
    environment = {
        "TMPDIR": str(unpacked),
        # The package then brings the libraries that a machine may not have.
        "AWS_LAMBDA_JS_RUNTIME": "nodejs20.x",
    }
    with (unpacked / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process: subprocess.Popen[bytes] = tether.start(
            ["node", "page.mjs"],
            cwd=HERE,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert Script(process).says() == "ready"
    return process
