"""A page in a real Chromium, which comes as an npm package."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.official_clients.test_npm_client import Script
from tests.support import tether
from tests.support.tools import node_or_skip

HERE = Path(__file__).parent


class Page:
    """A page. Methods return when the page has done it."""

    def __init__(self, script: Script, number: int) -> None:
        self._script = script
        self._number = number

    def open(self, url: str) -> None:
        self._order("open", url)

    def reload(self) -> None:
        self._order("reload")

    def be_offline(self, offline: bool) -> None:
        """Cut or mend what connects the page with all servers."""
        self._order("offline", offline)

    def press(self, key: str, times: int = 1) -> None:
        for _ in range(times):
            self._order("press", key)

    def click(self, selector: str) -> None:
        """Click the first element that the selector finds, once there is one."""
        self._order("click", selector)

    def resize(self, width: int, height: int) -> None:
        """Give the page so many pixels."""
        self._order("resize", width, height)

    def prefer(self, feature: str, value: str) -> None:
        """Let the reader prefer something, such as `prefers-color-scheme` `dark`."""
        self._order("prefer", feature, value)

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        self._order("screenshot", str(path))

    def include(self, path: Path) -> None:
        """Run a script in the page, whatever its policy says of scripts."""
        self._order("include", str(path))

    def until(self, expression: str) -> None:
        """Wait until an expression of JavaScript is true in the page."""
        self._order("until", expression)

    def type(self, selector: str, text: str) -> None:
        self._order("type", selector, text)

    def enter(self, selector: str, text: str) -> None:
        """Type a text and Enter."""
        self.type(selector, text)
        self.press("Enter")

    def wait(self, selector: str, texts: list[str]) -> None:
        """Wait until the elements that the selector finds have these texts, and no other is
        there."""
        self._order("wait", selector, texts)

    def text(self, selector: str) -> str:
        """The text of the first element that the selector finds."""
        return str(self._answer("text", selector))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, or of its promise, as scripts of the page have
        it."""
        return self._answer("evaluate", expression)

    def _answer(self, *question: object) -> Any:
        self.begin(*question)
        answer = self._script.says()
        assert not answer.startswith("failed: "), (question, answer)
        return json.loads(answer)

    def _order(self, *order: object) -> None:
        self.begin(*order)
        self.end(order)

    def begin(self, *order: object) -> None:
        self._script.tell(json.dumps((self._number, *order)))

    def end(self, order: object = None) -> None:
        answer = self._script.says()
        assert answer == "done", (order, answer)


def type_at_once(selector: str, texts: Mapping[Page, str]) -> None:
    """Type a text in each page, all at the same time."""
    for page, text in texts.items():
        page.begin("type", selector, text)
    for page in texts:
        page.end()


@contextmanager
def chromium() -> Iterator[Page]:
    """A page, in a browser of its own."""
    with pages(1) as (page,):
        yield page


@contextmanager
def pages(count: int, *arguments: str) -> Iterator[list[Page]]:
    """Pages of one browser, which keeps the rules of the web unless an argument turns them off."""
    node_or_skip()
    with TemporaryDirectory(prefix="browser-") as home:
        process: subprocess.Popen[bytes] = tether.start(
            ["node", "page.mjs", str(_unpacked()), home, *arguments],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        with process:
            try:
                script = Script(process)
                assert script.says() == "ready"
                yield [Page(script, number) for number in range(count)]
                script.end_input()
                assert script.status() == 0
            finally:
                process.kill()


def _unpacked() -> Path:
    """The folder with Chromium, its libraries and fonts: whole, or not there."""
    packages = HERE / "node_modules"
    unpacked = packages / ".browser"
    with (packages / ".browser.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process unpacks; the others wait for it
        if not unpacked.exists():
            with TemporaryDirectory(dir=packages) as directory:
                whole = Path(directory) / "whole"
                whole.mkdir()
                # The package unpacks the libraries where it seems to be in its author's cloud.
                environment = {"TMPDIR": str(whole), "AWS_LAMBDA_JS_RUNTIME": "nodejs20.x"}
                subprocess.run(
                    ["node", "unpack.mjs"], cwd=HERE, env={**os.environ, **environment}, check=True
                )
                whole.rename(unpacked)
    return unpacked
