"""A board of departures: this process and every open page keep the same table by one stream.

$ curl -X PUT :8000/departures/LX318 --json '{"to": "Zurich", "status": "boarding"}'
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import msgspec
from quart import Quart, abort, render_template, request

from streamd.client import AsyncClient, AsyncStream
from streamd.state import collection
from streamd.state.db import Collection, SQLite, StreamDB

STREAMD_URL = os.environ["STREAMD_URL"]
STREAMD_TOKEN = os.environ.get("STREAMD_TOKEN")  # if the server requires one
DAY_S = 24 * 3600
STREAM = "airport/board"
app = Quart(__name__)
app.config["MAX_CONTENT_LENGTH"] = 64 * 1024


class Departure(msgspec.Struct):
    """A row."""

    flight: str
    to: str
    status: str


class Board(StreamDB):
    """The state of the stream: one collection."""

    departures = collection(Departure, type="departure", key="flight")


@app.while_serving
async def follow() -> AsyncGenerator[None, None]:
    """Keep the rows up to date in the background, in a file that survives a kill."""
    async with AsyncClient(STREAMD_URL, token=STREAMD_TOKEN) as client:
        stream = client.stream(STREAM)
        await stream.create("application/json")
        store = SQLite(os.environ.get("BOARD_FILE", "board.db"))
        async with Board(stream, store=store) as board:
            await board.ready()
            app.extensions.update(board=board, stream=stream)
            yield


def departures() -> Collection[Departure]:
    """The rows, by flight."""
    board: Board = app.extensions["board"]
    return board.departures


@app.get("/")
async def page() -> str:
    """The page, with the address of the stream."""
    url = f"{STREAMD_URL}/v1/stream/{STREAM}"
    if STREAMD_TOKEN:
        stream: AsyncStream = app.extensions["stream"]
        url = await stream.signed_url(expires_in_s=DAY_S)
    return await render_template("page.html", stream=url)


@app.get("/departures")
async def show() -> list[object]:
    """The rows as this process has them; asks no server."""
    return [msgspec.to_builtins(row) for _, row in sorted(departures().items())]


@app.put("/departures/<flight>")
async def put(flight: str) -> tuple[str, int]:
    """Set a row, and answer when it is on the stream."""
    try:
        row = msgspec.convert({**await request.get_json(), "flight": flight}, Departure)
    except (TypeError, msgspec.ValidationError) as error:
        abort(400, str(error))
    await departures().upsert(row)
    return "", 204


@app.delete("/departures/<flight>")
async def delete(flight: str) -> tuple[str, int]:
    """Remove a row."""
    await departures().delete(flight)
    return "", 204
