"""The shopping agent, which kills itself at one step: URL, stream, directory of orders, step."""

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


class Fatal:
    """A model and tools that end their process at one step.

    Steps are `think:N`, the Nth time that the model is asked, and `before:N` and `after:N`, when
    the Nth call's tool has not acted yet and when it has. They are counted over the whole run. At
    `wait:N` the model waits for a line of input instead.
    """

    def __init__(self, step: str, orders: Path) -> None:
        self._step = step
        self.tools = {"price": self._fatal(price), "order": self._fatal(Shop(orders).order)}

    def think(self, events: list[Event]) -> Event:
        self._reach(f"think:{len(events) // 2}")
        if self._step == f"wait:{len(events) // 2}":
            print("waits", flush=True)
            sys.stdin.readline()
        return think(events)

    def _reach(self, step: str) -> None:
        if step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

    def _fatal(self, tool: Tool) -> Tool:
        def act(arguments: Mapping[str, Any], key: str) -> Any:
            number = key.rpartition("/")[2]
            self._reach(f"before:{number}")
            result = tool(arguments, key)
            self._reach(f"after:{number}")
            return result

        return act


def main() -> None:
    url, stream, directory, step = sys.argv[1:]
    fatal = Fatal(step, Path(directory))
    with Client(url, retry_for_s=60) as client:
        print(work(client.stream(stream), GOAL, fatal.think, fatal.tools))


if __name__ == "__main__":
    main()
