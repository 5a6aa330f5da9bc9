"""LangGraph's own tests of checkpointers, of the one in examples/langgraph at the server URL.

Prints as JSON, by capability, how many passed and which failed; and which threads are listed when
none is named, which those tests leave out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

from langgraph.checkpoint.conformance import checkpointer_test, validate

from examples.langgraph.saver import StreamSaver
from streamd.client import Client


@checkpointer_test("streamd")
async def saver() -> AsyncIterator[StreamSaver]:
    with Client(sys.argv[1]) as client, StreamSaver(client) as saver:
        yield saver


def main() -> None:
    report = asyncio.run(validate(saver))
    tested = {name: one for name, one in report.results.items() if one.detected}
    with Client(sys.argv[1]) as client:
        listed = {one.config["configurable"]["thread_id"] for one in StreamSaver(client).list(None)}
    passed = {name: [one.tests_passed, one.failures] for name, one in tested.items()}
    print(json.dumps({"passed": passed, "threads": sorted(listed)}))


if __name__ == "__main__":
    main()
