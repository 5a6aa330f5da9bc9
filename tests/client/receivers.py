"""Receivers of webhooks in the frameworks that people use, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import fastapi
import flask
import hypercorn.asyncio
import hypercorn.config
import quart
import werkzeug.serving

from streamd.client import AsyncClient, BadWebhook, Client, Notification
from streamd.client.webhooks import DONE
from tests.support.ports import unused_port

# Takes a notification, and returns whether it is handled.
Handle = Callable[[Notification], bool]


def in_fastapi(url: str, handle: Handle) -> fastapi.FastAPI:
    hooks = AsyncClient(url).webhooks("mail")
    app = fastapi.FastAPI()

    @app.post("/hook")
    async def hook(request: fastapi.Request) -> dict[str, bool]:
        try:
            notification = await hooks.verify(request.headers, await request.body())
        except BadWebhook as bad:
            raise fastapi.HTTPException(bad.status, str(bad)) from None
        return DONE if handle(notification) else {}

    return app


def in_quart(url: str, handle: Handle) -> quart.Quart:
    hooks = AsyncClient(url).webhooks("mail")
    app = quart.Quart(__name__)

    @app.post("/hook")
    async def hook() -> dict[str, bool]:
        try:
            notification = await hooks.verify(quart.request.headers, await quart.request.data)
        except BadWebhook as bad:
            quart.abort(bad.status, str(bad))
        return DONE if handle(notification) else {}

    return app


def in_flask(url: str, handle: Handle) -> flask.Flask:
    hooks = Client(url).webhooks("mail")
    app = flask.Flask(__name__)

    @app.post("/hook")
    def hook() -> dict[str, bool]:
        try:
            notification = hooks.verify(flask.request.headers, flask.request.get_data())
        except BadWebhook as bad:
            flask.abort(bad.status, str(bad))
        return DONE if handle(notification) else {}

    return app


FRAMEWORKS: dict[str, Callable[[str, Handle], Any]] = {
    "fastapi": in_fastapi,
    "quart": in_quart,
    "flask": in_flask,
}


@contextmanager
def receiver(framework: str, url: str, handle: Handle) -> Iterator[str]:
    """The URL of a receiver that is served until the block ends; `url` is the server's."""
    app = FRAMEWORKS[framework](url, handle)
    serving = _by_threads if framework == "flask" else _by_tasks
    with serving(app) as served:
        yield f"{served}/hook"


@contextmanager
def _by_threads(app: flask.Flask) -> Iterator[str]:
    server = werkzeug.serving.make_server("127.0.0.1", 0, app, threaded=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def _by_tasks(app: Any) -> Iterator[str]:
    port = unused_port()
    config = hypercorn.config.Config.from_mapping(bind=[f"127.0.0.1:{port}"], loglevel="ERROR")
    begun, loop = Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        begun.set()
        await hypercorn.asyncio.serve(app, config, shutdown_trigger=over.wait)

    thread = Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    begun.wait()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
