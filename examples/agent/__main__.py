"""An agent that goes shopping. Kill it at any moment, start it again: it buys everything once.

The model is a few lines that play one: put yours in its place.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.agent.agent import Event, work
from streamd.client import Client

URL = os.environ.get("STREAMD_URL", "http://127.0.0.1:4437")
GOAL = "milk, eggs, flour"
PRICES = {"milk": 1.2, "eggs": 3.1, "flour": 0.9}


def think(events: list[Event]) -> Event:
    """Ask for the price of each item and order it, then tell what that cost."""
    items = events[0]["goal"].split(", ")
    results = [event["result"] for event in events if "result" in event]
    turn, orders = divmod(len(results), 2)
    if turn == len(items):
        return {"answer": f"I bought {events[0]['goal']} for {sum(results[::2]):.2f}."}
    arguments = {"item": items[turn]}
    if not orders:
        return {"tool": "price", "arguments": arguments}
    return {"tool": "order", "arguments": {**arguments, "price": results[-1]}}


def price(arguments: Mapping[str, Any], key: str) -> float:
    """What an item costs."""
    return PRICES[arguments["item"]]


class Shop:
    """Takes orders, which are files of a directory: the side effects."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def order(self, arguments: Mapping[str, Any], key: str) -> str:
        """Order an item. An order that has been taken under this key is not repeated."""
        taken = self.directory / f"{key.replace('/', '-')}.json"
        if not taken.exists():
            partial = taken.with_suffix(".part")
            partial.write_text(json.dumps(dict(arguments)))
            partial.rename(taken)
        return f"ordered {arguments['item']}"


def slowly(events: list[Event]) -> Event:
    """Think for a second, as models do, and show what has happened."""
    print(events[-1], flush=True)
    time.sleep(1)
    return think(events)


def main() -> None:
    """Run the agent on a stream, `agents/shopping` by default."""
    name = sys.argv[1] if len(sys.argv) > 1 else "agents/shopping"
    tools = {"price": price, "order": Shop(Path("orders")).order}
    with Client(URL, token=os.environ.get("STREAMD_TOKEN")) as client:
        print(work(client.stream(name), GOAL, slowly, tools))


if __name__ == "__main__":
    main()
