"""The loop of an agent whose run is a stream of events, and its only memory.

    {"goal": "Buy milk and eggs"}
    {"call": 0, "tool": "price", "arguments": {"item": "milk"}}
    {"call": 0, "result": 1.2}
    ...
    {"answer": "I bought milk and eggs."}

A call is on the stream before the tool acts, and its result afterwards. So a process that takes the
run over repeats at most the last call, with the same key, by which the tool knows a repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from streamd.client import Producer, Stream

Event: TypeAlias = dict[str, Any]
# The model: from what has happened to the next call or the answer.
Think: TypeAlias = Callable[[list[Event]], Event]
# A tool gets its arguments and a key. With a key that it has seen it changes nothing, and returns
# what it returned before.
Tool: TypeAlias = Callable[[Mapping[str, Any], str], Any]


def work(stream: Stream, goal: str, think: Think, tools: Mapping[str, Tool]) -> str:
    """Work on a goal until there is an answer, from wherever another process left the run.

    Raises `ProducerFenced` when another process takes the run over.
    """
    stream.create("application/json")
    with stream.producer("agent") as producer:
        events = take_over(stream, producer)
        if not events:
            record(producer, events, {"goal": goal})
        while "answer" not in events[-1]:
            if "tool" in events[-1]:
                call = events[-1]
                key = f"{stream.name}/{call['call']}"
                result = tools[call["tool"]](call["arguments"], key)
                record(producer, events, {"call": call["call"], "result": result})
            else:
                step = think(events)
                if "tool" in step:
                    step = {"call": len(events) // 2, **step}
                record(producer, events, step)
    return str(events[-1]["answer"])


def take_over(stream: Stream, producer: Producer) -> list[Event]:
    """Read the run, once no other process can add to it.

    The first append fences the producer of a process that was here before and may still live. If
    it came after the read, an event between the two would be missed.
    """
    producer.append_json({"process": producer.epoch})
    producer.flush()
    return [event for event in stream.read_json() if "process" not in event]


def record(producer: Producer, events: list[Event], event: Event) -> None:
    """Append an event, and wait until it is stored: nothing may happen before that."""
    producer.append_json(event)
    producer.flush()
    events.append(event)
