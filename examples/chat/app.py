"""A chat whose messages are a stream, which the page reads from streamd itself.

    {"id": "5f0c", "role": "user", "text": "What is a stream?"}
    {"id": "17d3", "role": "assistant", "text": "A stream"}
    {"id": "17d3", "role": "assistant", "text": " is"}

Texts of one id are pieces of one message.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from uuid import UUID, uuid4

from quart import Quart, abort, redirect, render_template, request
from werkzeug.wrappers import Response

from streamd.client import AsyncClient, AsyncStream

STREAMD_URL = os.environ["STREAMD_URL"]
STREAMD_TOKEN = os.environ.get("STREAMD_TOKEN")  # if the server requires one
DAY_S = 24 * 3600
app = Quart(__name__)
app.config["MAX_CONTENT_LENGTH"] = 64 * 1024


async def think(question: str) -> AsyncIterator[str]:
    """The model, or what plays one here: yields an answer in pieces."""
    for word in f"You asked: {question} Let me think about that for a while.".split():
        await asyncio.sleep(0.3)
        yield f"{word} "


@app.while_serving
async def connect() -> AsyncGenerator[None, None]:
    """Hold one client for all requests."""
    async with AsyncClient(STREAMD_URL, token=STREAMD_TOKEN) as client:
        app.extensions["streamd"] = client
        yield


@app.get("/")
async def begin() -> Response:
    """Begin a chat, which has an address of its own."""
    return redirect(f"/chats/{uuid4()}")


@app.get("/chats/<uuid:chat>")
async def page(chat: UUID) -> str:
    """The page, with the address of its stream."""
    stream = stream_of(chat)
    await stream.create("application/json")
    url = f"{STREAMD_URL}/v1/stream/chats/{chat}"
    if STREAMD_TOKEN:
        url = await stream.signed_url(expires_in_s=DAY_S)
    return await render_template("page.html", stream=url)


@app.post("/chats/<uuid:chat>")
async def ask(chat: UUID) -> tuple[str, int]:
    """Store a question, and begin to answer it."""
    match await request.get_json():
        case {"text": str(question)}:
            stream = stream_of(chat)
        case _:
            abort(400)
    await stream.append_json({"id": uuid4().hex, "role": "user", "text": question})
    app.add_background_task(answer, stream, question)
    return "", 202


async def answer(stream: AsyncStream, question: str) -> None:
    """Append each piece of the answer once, whether a page is open or not."""
    message = uuid4().hex
    async with stream.producer() as producer:
        async for text in think(question):
            await producer.append_json({"id": message, "role": "assistant", "text": text})


def stream_of(chat: UUID) -> AsyncStream:
    """The stream of a chat."""
    client: AsyncClient = app.extensions["streamd"]
    return client.stream(f"chats/{chat}")
