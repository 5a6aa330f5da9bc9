"""A chat with the AI SDK whose answers are streams: `@durable-streams/aisdk-transport`.

`chat.mjs` is the app and its pages, after that package's README.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.official_clients.test_npm_client import Script, restarted, running
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

ROOT = "/v1/stream/chats"
START = [{"type": "stream-start", "warnings": []}, {"type": "text-start", "id": "1"}]


def text(*pieces: str) -> list[dict[str, Any]]:
    return [{"type": "text-delta", "id": "1", "delta": piece} for piece in pieces]


def finish(reason: str = "stop") -> dict[str, Any]:
    return {"type": "finish", "finishReason": {"unified": reason, "raw": reason}}


END = [{"type": "text-end", "id": "1"}, finish()]


@pytest.fixture(name="app", scope="module")
def _app(server: ServerProcess) -> Iterator[Script]:
    with running("chat.mjs", server.url + ROOT, server.url + ROOT) as app:
        yield app


def begin(app: Script, chat: str) -> tuple[str, str]:
    """A chat on two pages, both of which show the beginning of an answer."""
    asking, watching = f"{chat}-asking", f"{chat}-watching"
    app.ask("open", asking, chat)
    app.ask("send", asking, "Hi")
    app.ask("say", *START, *text("Good"))
    shows(app, asking, text="Good")
    joins(app, watching, chat)
    shows(app, watching, text="Good")
    return asking, watching


def joins(app: Script, page: str, chat: str) -> None:
    """Open a page as `useChat` with `resume` does: with what is saved, then with the stream."""
    app.ask("open", page, chat)
    app.ask("resume", page)


def shows(app: Script, page: str, **wanted: object) -> dict[str, Any]:
    seen: dict[str, Any] = app.ask("until", page, wanted)
    assert {key: seen[key] for key in wanted} == wanted
    return seen


def test_an_answer_reaches_every_page_and_survives_a_reload(
    app: Script, server: ServerProcess
) -> None:
    asking, watching = begin(app, "reloaded")
    joins(app, asking, "reloaded")
    shows(app, asking, text="Good")
    app.ask("say", *text(" day, ", "wörld 🙂"), *END)
    for page in (asking, watching):
        shows(app, page, text="Good day, wörld 🙂", status="ready", error=None)
    assert httpx.head(f"{server.url}{ROOT}/reloaded/1").headers["stream-closed"] == "true"
    # Nothing is under way any more: the page has what the app saved.
    joins(app, asking, "reloaded")
    shows(app, asking, text="Good day, wörld 🙂", status="ready")


def test_an_answer_survives_a_killed_server(app: Script, server: ServerProcess) -> None:
    asking, watching = begin(app, "killed")
    restarted(server, server.kill)
    app.ask("say", *text(" day"))
    for page in (asking, watching):
        # A page whose connection failed while the server was away resumes, as after a reload.
        joins(app, page, "killed")
        shows(app, page, text="Good day")
    app.ask("say", *text(", again"), *END)
    for page in (asking, watching):
        shows(app, page, text="Good day, again", status="ready", error=None)
    assert set(app.ask("written")) == {"fulfilled"}


def test_a_stopped_page_does_not_stop_the_answer(app: Script) -> None:
    asking, watching = begin(app, "stopped")
    app.ask("stop", asking)
    shows(app, asking, text="Good", status="ready", error=None)
    app.ask("say", *text(" day"), *END)
    shows(app, watching, text="Good day", status="ready")
    shows(app, asking, text="Good", status="ready")
    app.ask("open", asking, "stopped")
    shows(app, asking, text="Good day")


def test_an_aborted_answer_ends_on_every_page(app: Script, server: ServerProcess) -> None:
    asking, watching = begin(app, "aborted")
    app.ask("abort")
    for page in (asking, watching):
        shows(app, page, text="Good", status="ready")
    answer = httpx.get(f"{server.url}{ROOT}/aborted/1")
    assert answer.headers["stream-closed"] == "true"
    assert answer.json()[-1]["type"] == "abort"


def test_tools_are_called_before_the_eyes_of_every_page(app: Script) -> None:
    app.ask("open", "calling", "tools")
    app.ask("send", "calling", "How warm is it?")
    call = {"type": "tool-call", "toolCallId": "1", "toolName": "weather"}
    app.ask("say", START[0], {**call, "input": '{"city":"Zürich"}'}, finish("tool-calls"))
    app.ask("say", *START, *text("21 degrees."))
    city = {"city": "Zürich"}
    called = {"state": "output-available", "input": city, "output": {**city, "celsius": 21}}
    joins(app, "late", "tools")
    for page in ("calling", "late"):
        assert shows(app, page, text="21 degrees.")["tools"] == [called]
    app.ask("say", *END)
    for page in ("calling", "late"):
        assert shows(app, page, status="ready")["tools"] == [called]


def test_an_error_of_the_model_reaches_every_page(app: Script) -> None:
    asking, watching = begin(app, "failed")
    app.ask("say", {"type": "error", "error": {"message": "out of tokens"}}, *END)
    for page in (asking, watching):
        shows(app, page, status="error", error="the model failed: out of tokens")


def test_an_error_of_the_app_reaches_the_page(app: Script) -> None:
    app.ask("open", "page", "broken")
    app.ask("send", "page", "Hi", {"mode": "broken"})
    shows(app, "page", status="error", error="no model")


def test_the_app_may_wait_until_the_answer_is_stored(app: Script) -> None:
    app.ask("open", "page", "awaited")
    app.ask("send", "page", "Hi", {"mode": "await"})
    app.ask("say", *START, *text("Hello"), *END)
    shows(app, "page", text="Hello", status="ready")


def test_a_cluster_carries_a_chat_from_one_node_to_another(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 2, proxied=False) as cluster:
        urls = [f"{node.url}{ROOT}" for node in cluster.nodes.values()]
        for write_root, read_root in (urls, urls[::-1]):
            with running("chat.mjs", write_root, read_root) as app:
                asking, watching = begin(app, f"node-{urls.index(write_root)}")
                app.ask("say", *text(" day"), *END)
                for page in (asking, watching):
                    shows(app, page, text="Good day", status="ready", error=None)
