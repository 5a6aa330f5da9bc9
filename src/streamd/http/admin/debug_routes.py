"""What a node's process does and holds, for operators who look for a fault: a part of the
operations app.

With workers this is the process that has the group. Nothing here shows values of streams, requests
or credentials (`diagnostics`).
"""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import trio
from quart import Response, jsonify, request
from quart_trio import QuartTrio

from streamd.http.admin.answers import Answer, answering, error_answer
from streamd.http.protocol.fields import BadRequest, parse_query, whole_number
from streamd.process.diagnostics import (
    MAX_PROFILE_S,
    FillLevel,
    ProfileInProgress,
    Profiler,
    task_tree,
)

_TEXT = "text/plain; charset=utf-8"
_RSS = re.compile(r"^(VmRSS|VmHWM):\s+(\d+) kB$", re.MULTILINE)

HeldNow = Callable[[], Mapping[str, FillLevel]]


def add(app: QuartTrio, held: HeldNow) -> None:
    """Add the routes to the operations app. `held` tells how full queues and caches are."""
    profiler = Profiler()

    @app.get("/cluster/debug/tasks")
    async def tasks() -> Response:
        return Response(task_tree(), content_type=_TEXT)

    @app.get("/cluster/debug/memory")
    async def memory() -> Response:
        return jsonify(_memory(held()))

    @app.get("/cluster/debug/profile")
    @answering
    async def profile() -> Answer:
        given = parse_query(request.query_string)
        seconds = whole_number(given.get(b"seconds", b""), "seconds", MAX_PROFILE_S)
        if not seconds:
            raise BadRequest("INVALID_REQUEST", "seconds must be at least 1")
        try:
            return Response(await profiler.profile(seconds), content_type=_TEXT), 200
        except ProfileInProgress:
            return error_answer("PROFILE_IN_PROGRESS", "another profile is being taken", 409)


def _memory(held: Mapping[str, FillLevel]) -> dict[str, object]:
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
