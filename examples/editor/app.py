"""An editor for several people. The application serves its page; the pages meet on a stream."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import UUID, uuid4

from quart import Quart, redirect, render_template, send_from_directory
from quart import Response as File
from werkzeug.wrappers import Response

from streamd.client import AsyncClient

STREAMD_URL = os.environ["STREAMD_URL"]
STREAMD_TOKEN = os.environ.get("STREAMD_TOKEN")  # if the server requires one
DAY_S = 24 * 3600
MODULES = Path(__file__).parent / "node_modules"
# Where browsers find what is imported by name: the modules of npm as they are, without a bundler.
IMPORTS = {"yjs": "/modules/yjs/dist/yjs.mjs"} | {
    f"lib0/{file.stem}": f"/modules/lib0/{file.name}" for file in MODULES.glob("lib0/*.js")
}
if len(IMPORTS) == 1:
    raise SystemExit("Yjs is missing: run npm ci --prefix examples/editor")
app = Quart(__name__)


@app.while_serving
async def connect() -> AsyncGenerator[None, None]:
    """Hold one client for all requests."""
    async with AsyncClient(STREAMD_URL, token=STREAMD_TOKEN) as client:
        app.extensions["streamd"] = client
        yield


@app.get("/")
async def begin() -> Response:
    """Begin a document, which has an address of its own."""
    return redirect(f"/docs/{uuid4()}")


@app.get("/docs/<uuid:document>")
async def page(document: UUID) -> str:
    """The page, with the address of its stream."""
    client: AsyncClient = app.extensions["streamd"]
    stream = client.stream(f"docs/{document}")
    await stream.create("application/json")
    url = f"{STREAMD_URL}/docs/{document}"
    if STREAMD_TOKEN:
        url = await stream.signed_url("GET", "POST", "PUT", prefix=True, expires_in_s=DAY_S)
    return await render_template("page.html", stream=url, imports=IMPORTS)


@app.get("/modules/<path:name>")
async def module(name: str) -> File:
    """A module of npm."""
    return await send_from_directory(MODULES, name)
