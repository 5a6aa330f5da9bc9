"""An agent that answers questions. Start several, kill any of them while it thinks."""

from __future__ import annotations

import asyncio
import os

from examples.woken.agent import Question, prepare, serve
from streamd.client import AsyncClient

URL = os.environ.get("STREAMD_URL", "http://127.0.0.1:4437")


async def think(question: Question) -> str:
    """Think for three seconds, as models do: put yours in its place."""
    print(f"thinking about {question['text']!r}", flush=True)
    await asyncio.sleep(3)
    return f"{question['text'].rstrip('?')}: that is a good question."


async def main() -> None:
    """Answer until it is killed."""
    async with AsyncClient(URL, token=os.environ.get("STREAMD_TOKEN")) as client:
        await prepare(client)
        await serve(client, think)


if __name__ == "__main__":
    asyncio.run(main())
