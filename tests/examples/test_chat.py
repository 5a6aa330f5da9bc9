"""The chat of examples/chat in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from streamd.client import Client
from tests.examples.applications import Application
from tests.examples.browsing import chromium
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

CHAT = "tests.examples.told_chat:app"
WORDS = "model/words"
MESSAGES = "#messages > *"
QUESTION = "What is a stream?"


@pytest.fixture(scope="module")
def chat(server: ServerProcess) -> Iterator[Application]:
    with Application(CHAT, {"STREAMD_URL": server.url, "MODEL_STREAM": WORDS}) as chat:
        yield chat


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
        one, two = (f"{chat.url}/chats/{uuid4()}" for _ in range(2))
        page.open(one)
        page.enter("input", QUESTION)
        page.wait(MESSAGES, [QUESTION])

        words.append_json("A log", " that")
        page.wait(MESSAGES, [QUESTION, "A log that"])
        page.reload()
        page.wait(MESSAGES, [QUESTION, "A log that"])

        words.append_json(" readers")
        page.wait(MESSAGES, [QUESTION, "A log that readers"])
        server.kill()
        server.start()
        server.wait_ready()
        words.append_json(" follow.", close=True)
        page.wait(MESSAGES, [QUESTION, "A log that readers follow."])

        page.open(two)
        page.wait(MESSAGES, [])
        page.open(one)
        page.wait(MESSAGES, [QUESTION, "A log that readers follow."])


def test_a_page_shows_what_is_a_message_as_text_and_skips_the_rest(
    chat: Application, client: Client
) -> None:
    name = f"chats/{uuid4()}"
    script = "<img src=x onerror=document.body.remove()>"
    with chromium() as page:
        page.open(f"{chat.url}/{name}")
        stream = client.stream(name)
        stream.append_json(None, 5, "text", {}, {"id": "a"}, {"id": "a", "role": "b", "text": {}})
        stream.append_json({"id": "messages", "role": "user", "text": script})
        page.wait(MESSAGES, [script])


@pytest.mark.parametrize(
    ("body", "status"),
    [("{}", 400), ('{"text": 5}', 400), ("[]", 400), ('{"text": "%s"}' % ("a" * 10**6), 413)],
    ids=["empty", "a number", "an array", "long"],
)
def test_a_question_that_is_no_text_is_refused(chat: Application, body: str, status: int) -> None:
    url = f"{chat.url}/chats/{uuid4()}"
    headers = {"Content-Type": "application/json"}
    assert httpx.post(url, headers=headers, content=body).status_code == status
    assert httpx.post(url, headers={"Content-Type": "text/plain"}, content=body).is_error
