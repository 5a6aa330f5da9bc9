"""The agent that goes shopping, as a graph. Kill it at any moment, start it again: it goes on.

It has the model and the tools of examples/agent.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

from examples.agent.__main__ import GOAL, URL, Shop, price, slowly
from examples.langgraph.saver import StreamSaver
from streamd.client import Client

Event = dict[str, Any]


class Run(TypedDict):
    """What has happened."""

    events: Annotated[list[Event], operator.add]


def graph_of(think: Callable[[list[Event]], Event], tools: Mapping[str, Any]) -> StateGraph[Run]:
    """The model decides, a tool acts, and so on until there is an answer."""

    def decide(run: Run) -> Run:
        step = think(run["events"])
        return {"events": [{"call": len(run["events"]) // 2, **step}]}

    def act(run: Run, config: RunnableConfig) -> Run:
        call = run["events"][-1]
        # A process that was killed here is followed by one that calls the tool again.
        key = f"{config['configurable']['thread_id']}/{call['call']}"
        result = tools[call["tool"]](call["arguments"], key)
        return {"events": [{"call": call["call"], "result": result}]}

    def after_decision(run: Run) -> str:
        return "act" if "tool" in run["events"][-1] else END

    graph = StateGraph(Run)
    graph.add_node("decide", decide)
    graph.add_node("act", act)
    graph.add_edge(START, "decide")
    graph.add_conditional_edges("decide", after_decision)
    graph.add_edge("act", "decide")
    return graph


def work(saver: StreamSaver, thread_id: str, goal: str, graph: StateGraph[Run]) -> str:
    """Work on a goal until there is an answer, from wherever another process left the thread."""
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}, "recursion_limit": 1000}
    saver.take_over(thread_id)
    start: Run | None = None if saver.get(config) else {"events": [{"goal": goal}]}
    # "sync": a tool acts only when the decision to call it is stored.
    run = graph.compile(checkpointer=saver).invoke(start, config, durability="sync")
    return str(run["events"][-1]["answer"])


def main() -> None:
    """Run the agent on a thread, `shopping` by default."""
    thread_id = sys.argv[1] if len(sys.argv) > 1 else "shopping"
    tools = {"price": price, "order": Shop(Path("orders")).order}
    with Client(URL, token=os.environ.get("STREAMD_TOKEN")) as client, StreamSaver(client) as saver:
        print(work(saver, thread_id, GOAL, graph_of(slowly, tools)))


if __name__ == "__main__":
    main()
