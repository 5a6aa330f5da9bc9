"""The agent of examples/langgraph, which kills itself at one step: URL, thread, directory of
orders, step. Prints the answer, or `fenced` when another one has taken the thread over.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.langgraph.__main__ import graph_of, work
from examples.langgraph.saver import StreamSaver
from streamd.client import Client, ProducerFenced
from tests.examples.killed_agent import Fatal

GOAL = "milk"


def main() -> None:
    url, thread_id, directory, step = sys.argv[1:]
    fatal = Fatal(step, Path(directory))
    with Client(url, retry_for_s=60) as client:
        try:
            with StreamSaver(client) as saver:
                print(work(saver, thread_id, GOAL, graph_of(fatal.think, fatal.tools)))
        except ProducerFenced:
            print("fenced")


if __name__ == "__main__":
    main()
