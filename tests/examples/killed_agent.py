"""The shopping agent, which kills itself at one step: URL, stream, directory of orders, step.

Steps are `think:N`, the Nth time that the model is asked, and `before:N` and `after:N`, when the
Nth call's tool has not acted yet and when it has. They are counted over the whole run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.agent.__main__ import Shop, price, think
from examples.agent.agent import Event, Tool, work
from streamd.client import Client

GOAL = "milk, eggs"


def main() -> None:
    url, stream, directory, fatal_step = sys.argv[1:]

    def reach(step: str) -> None:
        if step == fatal_step:
            os.kill(os.getpid(), signal.SIGKILL)

    def thinking(events: list[Event]) -> Event:
        reach(f"think:{len(events) // 2}")
        return think(events)

    def fatal(tool: Tool) -> Tool:
        def act(arguments: Mapping[str, Any], key: str) -> Any:
            number = key.rpartition("/")[2]
            reach(f"before:{number}")
            result = tool(arguments, key)
            reach(f"after:{number}")
            return result

        return act

    tools = {"price": fatal(price), "order": fatal(Shop(Path(directory)).order)}
    with Client(url, retry_for_s=60) as client:
        print(work(client.stream(stream), GOAL, thinking, tools))


if __name__ == "__main__":
    main()
