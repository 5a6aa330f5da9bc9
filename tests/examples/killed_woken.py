"""The woken agent, which sends itself a signal at each step that it is the first to reach.

Arguments: URL, a directory, and the signal's name. A step is a file of the directory: `think-TEXT`
before a question is answered, `answered-TEXT` when its answer is stored and not acknowledged. An
answer is the question in capitals.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from examples.woken.agent import Question, serve
from streamd.client import AsyncClient, AsyncWake


async def main() -> None:
    """Answer until the signal comes."""
    url, directory, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    acknowledge, thought = AsyncWake.ack, ""

    def reach(step: str) -> None:
        try:
            (directory / step).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.Signals[name])

    async def think(question: Question) -> str:
        nonlocal thought
        thought = str(question["text"])
        reach(f"think-{thought}")
        return thought.upper()

    async def ack(self: AsyncWake, handled: Mapping[str, str]) -> None:
        reach(f"answered-{thought}")
        await acknowledge(self, handled)

    AsyncWake.ack = ack  # type: ignore[method-assign]
    async with AsyncClient(url, retry_for_s=60) as client:
        await serve(client, think)


if __name__ == "__main__":
    asyncio.run(main())
