"""The page of examples/verify says in Chromium what the verifier in Python says."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.examples.browsing import Page, chromium
from tests.proofs.corpus import MadeLog
from tests.support import tether
from tests.support.ports import unused_port

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
LOG = MadeLog(21)
JSON = next(one for one in LOG.proofs() if one.content_type == "application/json")
VERDICT = "document.getElementById('verdict').textContent"
# Choose files, as a hand would.
CHOOSE = """((contents) => {
  const chosen = new DataTransfer()
  contents.forEach((one, at) => chosen.items.add(new File([one], `${at}.json`)))
  const files = document.getElementById("files")
  files.files = chosen.files
  return files.dispatchEvent(new Event("change"))
})(%s)"""
# The page's own scripts must not reach anyone, even if somebody changes the module.
CALL_OUT = "fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    port = unused_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1"]
    command += ["--directory", "examples/verify", str(port)]
    with tether.start(command, cwd=ROOT, stderr=subprocess.DEVNULL) as server, chromium() as page:
        try:
            url = f"http://127.0.0.1:{port}/"
            wait_until_served(url)
            page.open(url)
            page.type("#key", LOG.public(0))
            yield page
        finally:
            server.kill()


def wait_until_served(url: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            urlopen(url, timeout=1).close()
        except URLError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("the page is not served")


def verdict(page: Page, *contents: bytes) -> str:
    """What the page says of these files."""
    page.evaluate("document.getElementById('verdict').textContent = ''")
    page.evaluate(CHOOSE % json.dumps([one.decode() for one in contents]))
    deadline = time.monotonic() + DEADLINE_S
    while not (said := str(page.evaluate(VERDICT))):
        assert time.monotonic() < deadline, "the page says nothing"
    return said


def test_a_proof_shows_its_record(page: Page) -> None:
    proved, record, head = verdict(page, JSON.content).splitlines()
    expected = f"entry {JSON.entry} appends this record to {JSON.stream}, as application/json:"
    assert proved == f"PROVED: {expected}"
    assert record == JSON.record.decode()
    assert head.endswith("at 2025-11-24T16:00:00.040Z")


def test_a_forged_proof_is_refused(page: Page) -> None:
    forged = JSON.content.replace(b'"number":', b'"number":1')
    assert forged != JSON.content
    assert verdict(page, forged).startswith("NOT PROVED: ")


def test_two_heads_show_that_the_log_has_grown(page: Page) -> None:
    old, new = LOG.grown(21, 40)
    expected = "PROVED: the first log is the beginning of the second\n"
    assert verdict(page, old, new).startswith(expected)
    assert verdict(page, new, old).startswith(expected)
    assert verdict(page, new, new).startswith("NOT PROVED: ")


def test_the_page_can_send_nothing_away(page: Page) -> None:
    assert page.evaluate(CALL_OUT) == "refused"
