"""Answers what is appended to `questions/NAME` in `answers/NAME`, each question once.

    questions/lunch    {"text": "What is there to eat?"}
    answers/lunch      {"generation": 7}
                       {"after": "0000000000000001_0000000000000035", "answer": "Soup."}

The subscription wakes one worker, and another one if that dies. An answer and the place up to which
the questions are answered are one message, so they are stored together or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from streamd.client import AsyncClient, AsyncWake

Question: TypeAlias = dict[str, Any]
# The model: from a question to its answer. It may be asked twice, if the worker dies meanwhile.
Think: TypeAlias = Callable[[Question], Awaitable[str]]

SUBSCRIPTION = "agent"
WAKES = "agent/wakes"


async def prepare(client: AsyncClient, lease_ttl_s: float = 10.0) -> None:
    """Create the subscription, unless it exists. What is asked from now on wakes a worker."""
    await client.stream(WAKES).create("application/json")
    await client.subscription(SUBSCRIPTION).create(
        wake_stream=WAKES, pattern="questions/*", lease_ttl_s=lease_ttl_s
    )


async def serve(client: AsyncClient, think: Think) -> None:
    """Wait for questions and answer them, for ever. Any number of processes may do this."""
    worker = client.subscription(SUBSCRIPTION).worker()
    while True:
        async with worker.next() as wake:
            for stream in wake.pending:
                await answer(client, wake, stream.path, stream.acked_offset, think)


async def answer(
    client: AsyncClient, wake: AsyncWake, questions: str, acked_offset: str, think: Think
) -> None:
    """Answer the questions of a stream that have no answer yet.

    The first append fences the worker that was here before and may still live. So what is read
    after it is all that this one will ever have written.
    """
    answers = client.stream(questions.replace("questions/", "answers/", 1))
    await answers.create("application/json")
    async with wake.producer(answers.name, "agent") as producer:
        await producer.append_json({"generation": wake.generation})
        await producer.flush()
        position = acked_offset
        async for written in answers.read_json():
            position = written.get("after", position)
        asked = client.stream(questions).read_json(position, offsets=True)
        async for position, question in asked:
            text = await think(question)
            await producer.append_json({"after": position, "answer": text})
            await producer.flush()
            await wake.ack({questions: position})
