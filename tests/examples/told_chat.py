"""The chat of examples/chat with a model that says what a test appends to MODEL_STREAM."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from examples.chat import app as chat
from streamd.client import AsyncClient


async def think(question: str) -> AsyncIterator[str]:
    async with AsyncClient(chat.STREAMD_URL) as client:
        async for word in client.stream(os.environ["MODEL_STREAM"]).follow_json():
            yield word


chat.think = think
app = chat.app
