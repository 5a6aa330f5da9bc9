"""The editor of examples/editor: several pages in Chromium edit one text."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from streamd.client import Client, OffsetGone, Stream
from tests.examples.applications import Application
from tests.examples.browsing import Page, pages, type_at_once
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

EDITOR = "examples.editor.app:app"
TEXT, STATUS = "textarea", "output"
DEADLINE_S = 60.0
LONG_LOG = 200
# Updates of Yjs by another program: an image, and characters that a textarea has no room for.
IMAGE = "AQEHAAUBBHRleHQNeyJpbWFnZSI6IngifQA="
LINE_ENDS = "AQEIAAQBBHRleHQDDQoNAA=="


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that ends live connections every second: else pages that go offline would keep theirs."""
    environment = {"STREAMD_SERVER_SSE_LIFETIME_MS": "1000"}
    data_dir = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess(data_dir, environment=environment) as server:
        yield server


@pytest.fixture(scope="module")
def editor(server: ServerProcess) -> Iterator[Application]:
    with Application(EDITOR, {"STREAMD_URL": server.url}) as editor:
        yield editor


@pytest.fixture(scope="module")
def browser() -> Iterator[list[Page]]:
    with pages(3) as browser:
        yield browser


@pytest.fixture
def document() -> str:
    """The name of a new one."""
    return f"docs/{uuid4()}"


@pytest.fixture
def writers(browser: list[Page], editor: Application, document: str) -> tuple[Page, Page]:
    """Two pages. The first has written `|`, and writes before it; the second writes after it."""
    before, after, _ = browser
    before.open(f"{editor.url}/{document}")
    before.type(TEXT, "|")
    before.press("ArrowLeft")
    after.open(f"{editor.url}/{document}")
    see([after], "|")
    after.press("End")
    return before, after


def see(pages: list[Page], text: str) -> None:
    """Wait until all have this text, and know that it is stored."""
    for page in pages:
        page.wait(TEXT, [text])
        page.wait(STATUS, ["Saved"])


def test_what_two_people_type_at_once_is_complete_and_equal(writers: tuple[Page, Page]) -> None:
    before, after = writers
    one, other = "The quick brown fox " * 3, " jumps over the lazy dog 🦊" * 3
    type_at_once(TEXT, {before: one, after: other})
    see([before, after], f"{one}|{other}")


def test_edits_made_offline_and_over_a_killed_server_are_merged(
    writers: tuple[Page, Page], server: ServerProcess
) -> None:
    before, after = writers
    after.be_offline(True)
    after.wait(STATUS, ["Offline"])
    type_at_once(TEXT, {before: "abc", after: "xyz"})
    see([before], "abc|")
    after.wait(TEXT, ["|xyz"])
    after.be_offline(False)
    see([before, after], "abc|xyz")

    type_at_once(TEXT, {before: "def", after: "uvw"})
    server.kill()
    type_at_once(TEXT, {before: "ghi", after: "rst"})
    before.press("Backspace")
    before.wait(STATUS, ["Offline"])
    server.start()
    server.wait_ready()
    see([before, after], "abcdefgh|xyzuvwrst")
    before.reload()
    see([before], "abcdefgh|xyzuvwrst")


def test_a_page_that_leaves_while_it_writes_loses_nothing(
    writers: tuple[Page, Page], server: ServerProcess
) -> None:
    """One append is under way then, and the rest of the text waits for its answer."""
    before, after = writers
    text = "written in haste"
    server.signal(signal.SIGSTOP)
    before.type(TEXT, text)
    before.open("about:blank")
    server.signal(signal.SIGCONT)
    see([after], f"{text}|")


def test_late_readers_begin_at_a_snapshot(
    writers: tuple[Page, Page],
    browser: list[Page],
    editor: Application,
    document: str,
    client: Client,
) -> None:
    """A page that had to read a long log publishes one for those after it."""
    before, after = writers
    after.type(TEXT, "end")
    see([before, after], "|end")
    before.be_offline(True)
    before.wait(STATUS, ["Offline"])
    before.type(TEXT, "begin")
    stream = client.stream(document)
    stream.append_json(*[next(iter(stream.read_json()))] * LONG_LOG)
    after.reload()
    published(stream)
    with pytest.raises(OffsetGone):
        list(stream.read())

    late = browser[2]
    late.open(f"{editor.url}/{document}")
    see([late], "|end")
    before.be_offline(False)
    see([before, after, late], "begin|end")


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([None, 7, "", "AA", "AQID", "no base64", {"update": IMAGE}, [IMAGE], IMAGE[:20]], "|"),
        ([IMAGE], "|"),
        ([LINE_ENDS], "\n|"),
    ],
    ids=["no updates", "an image", "line ends"],
)
def test_what_strangers_append_stops_nobody(
    writers: tuple[Page, Page],
    browser: list[Page],
    editor: Application,
    document: str,
    client: Client,
    messages: list[object],
    text: str,
) -> None:
    before, after = writers
    client.stream(document).append_json(*messages)
    see([before, after], text)
    type_at_once(TEXT, {before: "abc", after: "xyz"})
    see([before, after], f"abc{text}xyz")
    late = browser[2]
    late.open(f"{editor.url}/{document}")
    see([late], f"abc{text}xyz")


def published(stream: Stream) -> None:
    """Wait until the stream has a snapshot."""
    deadline = time.monotonic() + DEADLINE_S
    while stream.head().snapshot_offset is None:
        assert time.monotonic() < deadline, "there is no snapshot"
        time.sleep(0.02)
