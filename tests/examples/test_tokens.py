"""The applications of examples/ at a server that requires tokens: their pages get none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.examples.applications import Application
from tests.examples.browsing import Page, pages
from tests.http.authorized import Authorized, authorized

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authorized]:
    with authorized("HTTP/1.1", tmp_path_factory.mktemp("authorized")) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[list[Page]]:
    with pages(2) as browser:
        yield browser


def at(server: Authorized, token: str, name: str, **environment: str) -> Application:
    application = f"examples.{name}.app:app"
    own = {"STREAMD_URL": server.urls[0], "STREAMD_TOKEN": token}
    return Application(application, {**own, **environment})


def assert_untold(token: str, url: str) -> None:
    page = httpx.get(url).text
    secret = token.rpartition("_")[2]
    assert "signed=" in page
    assert secret not in page


def test_pages_of_the_editor_append_and_publish(server: Authorized, browser: list[Page]) -> None:
    token = server.token("create:docs/*", "append:docs/*", "read:docs/*", "snapshot:docs/*")
    one, other = browser
    name = f"docs/{uuid4()}"
    with at(server, token, "editor") as editor:
        assert_untold(token, f"{editor.url}/{name}")
        one.open(f"{editor.url}/{name}")
        one.type("textarea", "abc")
        one.wait("output", ["Saved"])
        server.ask("POST", f"/v1/stream/{name}", json=[0] * 200)
        other.open(f"{editor.url}/{name}")
        other.wait("textarea", ["abc"])
        server.until(lambda: server.ask("HEAD", f"/{name}/snapshot").status_code == 307)
        one.reload()
        one.wait("textarea", ["abc"])


def test_a_page_of_the_chat_reads(server: Authorized, browser: list[Page]) -> None:
    token = server.token("create:chats/*", "append:chats/*", "read:chats/*")
    page = browser[0]
    with at(server, token, "chat") as chat:
        url = f"{chat.url}/chats/{uuid4()}"
        assert_untold(token, url)
        page.open(url)
        page.enter("input", "Who are you?")
        page.wait(".user", ["Who are you?"])


def test_the_page_of_the_table_reads(
    server: Authorized, browser: list[Page], tmp_path: Path
) -> None:
    token = server.token("create:airport/board", "append:airport/board", "read:airport/board")
    page = browser[0]
    with at(server, token, "table", BOARD_FILE=str(tmp_path / "board.db")) as table:
        assert_untold(token, table.url)
        row = {"to": "Zurich", "status": "boarding"}
        assert httpx.put(f"{table.url}/departures/LX318", json=row).status_code == 204
        page.open(table.url)
        page.wait("td", ["LX318", "Zurich", "boarding"])
