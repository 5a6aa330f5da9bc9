"""Threads for blocking work, on machines that give a thread little stack."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import outcome
import pytest
import trio
import trio.testing

from streamd.process import threads as blocking
from streamd.process.threads import own_thread

_DECODE = """
import msgspec, trio
from streamd.process.threads import in_thread

def decode():
    try:
        msgspec.json.decode(b"[" * 9_900 + b"]" * 9_900)
    except RecursionError:
        pass
    print("alive")

trio.run(in_thread, decode)
"""


def test_a_deeply_nested_body_ends_no_process_whose_threads_have_little_stack() -> None:
    # glibc gives a thread 2 MiB where the stack is unlimited, and the limit where there is one.
    limit_bytes = 1024 * 1024

    def limit_stack() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (limit_bytes, hard))

    done = subprocess.run(
        [sys.executable, "-c", _DECODE], preexec_fn=limit_stack, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, b"alive\n"), done.stderr


async def test_calls_in_a_thread_of_their_own_run_one_at_a_time_in_order() -> None:
    made: list[int] = []
    threads: set[int] = set()
    together = threading.Semaphore(1)

    def call(number: int) -> int:
        assert together.acquire(blocking=False), "another call runs"
        threads.add(threading.get_ident())
        made.append(number)
        together.release()
        return number

    async def ask(number: int) -> None:
        assert await in_thread(call, number) == number

    async with own_thread() as in_thread:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, number)
                await trio.testing.wait_all_tasks_blocked()
        assert made == [*range(20)]
        assert threads.isdisjoint({threading.get_ident()})
        assert len(threads) == 1


async def test_a_begun_call_runs_before_anybody_waits() -> None:
    ran = threading.Event()
    ends: list[object] = []
    async with own_thread() as in_thread:
        in_thread.begin(ends.append, ran.set)
        assert ran.wait(60)
        assert not ends, "the loop had no turn"


async def test_ends_are_reported_in_the_order_in_which_calls_were_begun() -> None:
    may_end = threading.Event()
    ends: list[outcome.Outcome[object]] = []
    async with own_thread() as in_thread:
        in_thread.begin(ends.append, may_end.wait, 60)
        in_thread.begin(ends.append, str, "second")
        await trio.testing.wait_all_tasks_blocked()
        assert ends == []
        may_end.set()
        assert await in_thread(len, "abc") == 3
        assert [end.unwrap() for end in ends] == [True, "second"]


async def test_a_call_is_waited_for_while_the_context_is_cancelled() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert may_end.wait(60)
        return "slow"

    results: list[str] = []
    with trio.CancelScope() as scope:
        async with own_thread() as in_thread, trio.open_nursery() as nursery:

            async def wait() -> None:
                with trio.CancelScope(shield=True):
                    results.append(await in_thread(slow))
                    results.append(await in_thread(str, "another"))

            nursery.start_soon(wait)
            while not begun.is_set():
                await trio.lowlevel.checkpoint()
            scope.cancel()
            await trio.lowlevel.cancel_shielded_checkpoint()
            may_end.set()
    assert results == ["slow", "another"]


async def test_the_thread_ends_with_its_context_although_nobody_waited_for_a_call() -> None:
    made: list[str] = []
    async with own_thread() as in_thread:
        in_thread.begin(lambda _: None, made.append, "begun")
    assert made == ["begun"]


async def test_an_error_in_a_thread_of_its_own_reaches_the_caller() -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    async with own_thread() as in_thread:
        for _ in range(2):
            with pytest.raises(OSError, match="full"):
                await in_thread(fail)
            assert await in_thread(len, "abc") == 3


async def test_a_cancelled_caller_waits_for_its_call_and_the_next_gets_its_own_result() -> None:
    begun, may_end = threading.Event(), threading.Event()
    ended: list[str] = []

    def slow() -> str:
        begun.set()
        assert may_end.wait(60)
        ended.append("slow")
        return "slow"

    async def cancelled(scope: trio.CancelScope) -> None:
        with scope:
            await in_thread(slow)
        assert ended == ["slow"]

    async with own_thread() as in_thread, trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(cancelled, scope)
        while not begun.is_set():
            await trio.lowlevel.checkpoint()
        scope.cancel()
        await trio.lowlevel.checkpoint()
        assert not ended
        may_end.set()
        assert await in_thread(str, "next") == "next"
        assert ended == ["slow"]


async def test_a_caller_that_is_cancelled_while_it_waits_for_its_turn_makes_no_call() -> None:
    begun, may_end = threading.Event(), threading.Event()
    made: list[str] = []

    def slow() -> None:
        begun.set()
        assert may_end.wait(60)

    async with own_thread() as in_thread, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, slow)
        while not begun.is_set():
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(0):
            await in_thread(made.append, "cancelled")
        may_end.set()
        await in_thread(made.append, "made")
    assert made == ["made"]


async def test_the_thread_ends_with_its_context() -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    before = names().count("streamd-log")
    async with own_thread() as in_thread:
        assert "streamd-log" in await in_thread(names)
    assert names().count("streamd-log") == before


async def test_a_caller_gets_its_own_result_even_if_that_comes_before_the_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop's thread may get its turn between the two."""
    there, may_tell = threading.Event(), threading.Event()
    tell = os.writev

    def tell_late(descriptor: int, value: Sequence[bytes]) -> int:
        there.set()
        assert may_tell.wait(60)
        return tell(descriptor, value)

    class Overtaken(SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put(item)
            if item is not None and callable(item[1]):
                assert there.wait(60)

    monkeypatch.setattr(os, "writev", tell_late)
    monkeypatch.setattr(blocking, "SimpleQueue", Overtaken)
    results: list[str] = []

    async def call() -> None:
        results.append(await in_thread(str, "first"))

    async with own_thread() as in_thread:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            may_tell.set()
        results.append(await in_thread(str, "second"))
    assert results == ["first", "second"]
