"""A chat session with TanStack AI in one stream: `@durable-streams/tanstack-ai-transport`.

`session.mjs` is the app and its pages, after that package's README. The server has workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.official_clients.test_npm_client import Script, restarted, running
from tests.support.server_process import ServerProcess
from tests.workers.processes import with_workers

pytestmark = pytest.mark.long

ROOT = "/v1/stream/sessions"
RUN = {"runId": "1", "threadId": "1"}


def started(message: str, *pieces: str) -> list[dict[str, Any]]:
    begin = {"type": "TEXT_MESSAGE_START", "messageId": message, "role": "assistant"}
    return [{"type": "RUN_STARTED", **RUN}, begin, *text(message, *pieces)]


def text(message: str, *pieces: str) -> list[dict[str, Any]]:
    content = {"type": "TEXT_MESSAGE_CONTENT", "messageId": message}
    return [{**content, "delta": piece} for piece in pieces]


def finished(message: str, reason: str = "stop") -> list[dict[str, Any]]:
    end = {"type": "TEXT_MESSAGE_END", "messageId": message}
    return [end, {"type": "RUN_FINISHED", **RUN, "finishReason": reason}]


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with with_workers(tmp_path_factory.mktemp("sessions")) as server:
        yield server


@pytest.fixture(name="app", scope="module")
def _app(server: ServerProcess) -> Iterator[Script]:
    with running("session.mjs", server.url + ROOT) as app:
        yield app


def begin(app: Script, server: ServerProcess, chat: str) -> tuple[str, str]:
    """A session on two pages, both of which show the beginning of an answer."""
    asking, watching = f"{chat}-asking", f"{chat}-watching"
    made = httpx.put(f"{server.url}{ROOT}/{chat}", headers={"Content-Type": "application/json"})
    assert made.status_code == 201
    for page in (asking, watching):
        app.ask("open", page, chat)
    app.ask("send", asking, "Hi")
    app.ask("say", *started("m1", "Good"))
    for page in (asking, watching):
        shows(app, page, said="Hi|Good", generating=True)
    return asking, watching


def shows(app: Script, page: str, **wanted: object) -> dict[str, Any]:
    seen: dict[str, Any] = app.ask("until", page, wanted)
    assert {key: seen[key] for key in wanted} == wanted
    return seen


def test_every_page_shows_the_session_and_may_continue_it(
    app: Script, server: ServerProcess
) -> None:
    asking, watching = begin(app, server, "shared")
    # A reload in the middle: from the beginning, or from what the server rendered.
    app.ask("open", "reloaded", "shared")
    hydrated = app.ask("hydrate", "hydrated", "shared")
    assert hydrated["said"] == "Hi|Good"
    app.ask("say", *text("m1", " day, ", "wörld 🙂"), *finished("m1"))
    pages = (asking, watching, "reloaded", "hydrated")
    for page in pages:
        shows(app, page, said="Hi|Good day, wörld 🙂", generating=False, error=None)
    app.ask("send", watching, "And?")
    app.ask("say", *started("m2", "Nothing."), *finished("m2"))
    for page in pages:
        shows(app, page, said="Hi|Good day, wörld 🙂|And?|Nothing.", generating=False)
    # Chunks are kept without what repeats: `content` is the sum of what came before.
    kept = httpx.get(f"{server.url}{ROOT}/shared").json()
    assert not [chunk for chunk in kept if "content" in chunk]


def test_a_session_survives_a_killed_server(app: Script, server: ServerProcess) -> None:
    asking, watching = begin(app, server, "killed")
    restarted(server, server.kill)
    app.ask("say", *text("m1", " day"), *finished("m1"))
    for page in (asking, watching):
        # A page whose connection failed while the server was away subscribes again.
        app.ask("reopen", page)
        shows(app, page, said="Hi|Good day", generating=False)


def test_a_page_that_comes_back_resumes_at_its_offset(app: Script, server: ServerProcess) -> None:
    asking, watching = begin(app, server, "left")
    app.ask("close", watching)
    app.ask("say", *text("m1", " day"), *finished("m1"))
    shows(app, asking, said="Hi|Good day", generating=False)
    assert app.ask("until", watching, {})["said"] == "Hi|Good"
    app.ask("reopen", watching)
    shows(app, watching, said="Hi|Good day", connection="connected")


def test_a_stopped_page_does_not_stop_the_session(app: Script, server: ServerProcess) -> None:
    asking, watching = begin(app, server, "stopped")
    app.ask("stop", asking)
    app.ask("say", *text("m1", " day"), *finished("m1"))
    shows(app, watching, said="Hi|Good day", generating=False)
    app.ask("hydrate", asking, "stopped")
    shows(app, asking, said="Hi|Good day")


def test_tools_are_called_before_the_eyes_of_every_page(app: Script, server: ServerProcess) -> None:
    asking, watching = begin(app, server, "tools")
    call = {"toolCallId": "1", "toolCallName": "weather", "parentMessageId": "m1"}
    app.ask(
        "say",
        {"type": "TOOL_CALL_START", **call},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "1", "delta": '{"city":"Zürich"}'},
        {"type": "TOOL_CALL_END", "toolCallId": "1"},
        *finished("m1", "tool_calls"),
    )
    app.ask("say", *started("m2", "21 degrees."), *finished("m2"))
    city = {"city": "Zürich"}
    called = {"name": "weather", "input": '{"city":"Zürich"}', "output": {**city, "celsius": 21}}
    for page in (asking, watching):
        assert shows(app, page, said="Hi|Good|21 degrees.", generating=False)["tools"] == [called]


def test_an_error_of_the_model_reaches_every_page(app: Script, server: ServerProcess) -> None:
    asking, watching = begin(app, server, "failed")
    app.ask("say", {"type": "RUN_ERROR", **RUN, "message": "out of tokens"})
    shows(app, asking, error="out of tokens", generating=False)
    shows(app, watching, generating=False)


def test_an_error_of_the_app_reaches_the_page(app: Script, server: ServerProcess) -> None:
    asking, watching = begin(app, server, "broken")
    app.ask("say", *finished("m1"))
    shows(app, asking, generating=False)
    app.ask("send", asking, "And?", {"broken": True})
    shows(app, asking, error="no model")
    shows(app, watching, said="Hi|Good", error=None)


def test_the_app_may_wait_until_the_answer_is_stored(app: Script, server: ServerProcess) -> None:
    asking, watching = begin(app, server, "awaited")
    app.ask("say", *finished("m1"))
    shows(app, asking, generating=False)
    app.ask("send", asking, "And?", {"mode": "await"})
    app.ask("say", *started("m2", "Done."), *finished("m2"))
    for page in (asking, watching):
        shows(app, page, said="Hi|Good|And?|Done.", generating=False)
