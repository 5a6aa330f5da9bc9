"""The chat of examples/chat in Chromium."""

from __future__ import annotations

from pathlib import Path

from streamd.client import Client
from tests.examples.applications import Application
from tests.examples.browsing import chromium
from tests.support.server_process import ServerProcess

CHAT = "tests.examples.told_chat:app"
WORDS = "model/words"
QUESTION = "What is a stream?"


def test_an_answer_is_shown_once_over_a_reload_a_second_page_and_a_killed_server(
    tmp_path: Path,
) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        Client(server.url) as client,
        Application(CHAT, {"STREAMD_URL": server.url, "MODEL_STREAM": WORDS}) as chat,
        chromium() as page,
    ):
        words = client.stream(WORDS)
        words.create("application/json")
        page.open(f"{chat.url}/chats/one")
        page.enter("input", QUESTION)
        page.wait("#messages > *", [QUESTION])

        words.append_json("A log", " that")
        page.wait("#messages > *", [QUESTION, "A log that"])
        page.reload()
        page.wait("#messages > *", [QUESTION, "A log that"])

        words.append_json(" readers")
        page.wait("#messages > *", [QUESTION, "A log that readers"])
        server.kill()
        server.start()
        server.wait_ready()
        words.append_json(" follow.", close=True)
        page.wait("#messages > *", [QUESTION, "A log that readers follow."])

        page.open(f"{chat.url}/chats/two")
        page.wait("#messages > *", [])
        page.open(f"{chat.url}/chats/one")
        page.wait("#messages > *", [QUESTION, "A log that readers follow."])
