"""What a process does: its tasks, and where its threads spend their time. Names and places in the
code only, and no values: they could be data of clients, or secrets."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import trio

MAX_TASKS = 2_000
MAX_PROFILE_S = 30
_INTERVAL_S = 0.01
# What bounds a profile's size: stacks that differ, their depth, and the length of a name.
_MAX_STACKS = 2_000
_MAX_DEPTH = 64
_MAX_NAME = 100
_OTHERS = "(others)"

_RSS = re.compile(r"^(VmRSS|VmHWM):\s+(\d+) kB$", re.MULTILINE)
_PACKAGE = Path(__file__).parents[1]
_ROOT = f"{_PACKAGE.parent}/"


class FillLevel(NamedTuple):
    """How much something holds, and how much it may: entries, connections or bytes."""

    now: int
    limit: int


def memory_of_process(held: Mapping[str, FillLevel]) -> dict[str, object]:
    """The memory of this process, and how full queues and caches are."""
    sizes = dict(_RSS.findall(Path("/proc/self/status").read_text()))
    return {
        "rss_bytes": int(sizes["VmRSS"]) * 1024,
        "peak_rss_bytes": int(sizes["VmHWM"]) * 1024,
        "tasks": trio.lowlevel.current_statistics().tasks_living,
        "threads": threading.active_count(),
        "open_files": len(os.listdir("/proc/self/fd")),
        "gc": {
            "counts": gc.get_count(),
            "thresholds": gc.get_threshold(),
            "generations": gc.get_stats(),
        },
        "held": {name: one._asdict() for name, one in sorted(held.items())},
    }


class ProfileInProgress(Exception):
    """Another profile is being taken."""


def task_tree(max_tasks: int = MAX_TASKS) -> str:
    """Trio's tasks, a line each, below those that they belong to, with the place where each waits:
    the innermost in this package, and what that called."""
    root = trio.lowlevel.current_root_task()
    lines: list[str] = []
    left = 0
    waiting = [] if root is None else [(0, root)]
    while waiting:
        depth, task = waiting.pop()
        if len(lines) < max_tasks:
            lines.append(f"{'  ' * depth}{task.name} at {_place(task)}\n")
        else:
            left += 1
        for nursery in task.child_nurseries:
            waiting += ((depth + 1, child) for child in nursery.child_tasks)
    if left:
        lines.append(f"and {left} more\n")
    return "".join(lines)


def _place(task: trio.lowlevel.Task) -> str:
    frames = list(_frames(task.coro))
    if not frames:
        return "its end"
    own = [n for n, frame in enumerate(frames) if _is_own(frame.f_code)]
    inner = own[-1] if own else 0
    code, line = frames[inner].f_code, frames[inner].f_lineno
    place = f"{_file(code)}:{line} {code.co_qualname}"
    if inner + 1 == len(frames):
        return place
    called = frames[inner + 1].f_code
    return f"{place}, in {_file(called)} {called.co_qualname}"


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(f"{_PACKAGE}/")


def _frames(awaited: Any) -> Iterator[FrameType]:
    """Frames of a coroutine and of what it waits for, the outermost first."""
    while awaited is not None:
        for prefix, following in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            frame = getattr(awaited, f"{prefix}_frame", None)
            if frame is not None:
                yield frame
                awaited = getattr(awaited, following)
                break
        else:
            return


def _file(code: CodeType) -> str:
    """A file's path below the directory that it was imported from, as far as that is known."""
    name = code.co_filename
    if name.startswith(_ROOT):
        return name.removeprefix(_ROOT)
    _, installed, below = name.rpartition("/site-packages/")
    return below if installed else "/".join(name.split("/")[-2:])


class Profiler:
    """Takes one profile at a time."""

    def __init__(self) -> None:
        self._is_busy = False

    async def profile(self, seconds: int) -> str:
        """Where all threads were in so many seconds, as collapsed stacks for flame graphs: a line
        for each stack, from the outermost function, and how many samples found it.

        A sample is taken every 10 ms, where the sampling thread can run: time in C code that holds
        the interpreter counts for the line after it. Raises `ProfileInProgress`.
        """
        if self._is_busy:
            raise ProfileInProgress
        self._is_busy, stop = True, threading.Event()
        try:
            return await trio.to_thread.run_sync(
                _sample, min(seconds, MAX_PROFILE_S), stop, abandon_on_cancel=True
            )
        finally:
            stop.set()
            self._is_busy = False


def _sample(seconds: int, stop: threading.Event) -> str:
    """Runs in a thread, which it leaves out."""
    own, ends_at = threading.get_ident(), time.monotonic() + seconds
    counts: dict[tuple[int, tuple[CodeType, ...]], int] = {}
    others = 0
    names: dict[int, str] = {}
    while time.monotonic() < ends_at and not stop.wait(_INTERVAL_S):
        names |= {thread.ident or 0: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            key = ident, _stack(frame)
            if ident == own:
                continue
            if key in counts or len(counts) < _MAX_STACKS:
                counts[key] = counts.get(key, 0) + 1
            else:
                others += 1
    lines = [
        f"{';'.join((_name(names.get(ident, str(ident))), *map(_function, stack)))} {count}\n"
        for (ident, stack), count in counts.items()
    ]
    return "".join(sorted(lines)) + (f"{_OTHERS} {others}\n" if others else "")


def _stack(frame: FrameType | None) -> tuple[CodeType, ...]:
    """The innermost functions of a stack, from the outside in."""
    codes: list[CodeType] = []
    while frame is not None and len(codes) < _MAX_DEPTH:
        codes.append(frame.f_code)
        frame = frame.f_back
    return tuple(reversed(codes))


def _function(code: CodeType) -> str:
    return _name(f"{_file(code)}:{code.co_qualname}")


def _name(text: str) -> str:
    """A name without what separates names and counts."""
    return text.replace(";", "_").replace(" ", "_")[-_MAX_NAME:]
