"""What both applications do: begin a job, and append its progress to a stream.

    {"done": 1, "of": 5}
    ...

The stream is closed when the job has ended.
"""

from __future__ import annotations

import asyncio
import os
from uuid import uuid4

from streamd.client import AsyncClient

STEPS = 5


async def begin() -> tuple[str, str]:
    """Make the stream of a new job. Returns its name, and a URL by which it is read for an hour."""
    async with connected() as client:
        stream = client.stream(f"jobs/{uuid4()}")
        await stream.create("application/json")
        return stream.name, await stream.signed_url(expires_in_s=3600)


async def work(name: str) -> None:
    """Do the job, and say how far it is, each time once."""
    async with connected() as client:
        stream = client.stream(name)
        async with stream.producer("worker") as producer:
            for step in range(1, STEPS + 1):
                await asyncio.sleep(0.2)  # the work
                await producer.append_json({"done": step, "of": STEPS}, close=step == STEPS)


def connected() -> AsyncClient:
    """The server of `STREAMD_URL`; the token may create, append to, close and read `jobs/*`."""
    return AsyncClient(os.environ["STREAMD_URL"], token=os.environ["STREAMD_TOKEN"])
