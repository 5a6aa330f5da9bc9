"""What a node's process does and holds, for operators who look for a fault.

With workers this is the process that has the group. Nothing here shows values of streams, requests
or credentials (`diagnostics`).
"""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path

import trio
from quart import Response, jsonify, request

from streamd.http.admin.operator import Answer, Operator
from streamd.http.protocol.fields import parse_query, whole_number
from streamd.process.diagnostics import MAX_PROFILE_S, FillLevel, task_tree
from streamd.protocol.problems import Problem

_TEXT = "text/plain; charset=utf-8"
_RSS = re.compile(r"^(VmRSS|VmHWM):\s+(\d+) kB$", re.MULTILINE)


async def tasks(operator: Operator) -> Answer:
    """The tasks of the process, and where each waits."""
    return Response(task_tree(), content_type=_TEXT), 200


async def memory(operator: Operator) -> Answer:
    """The memory of the process, and how full its queues and caches are."""
    return jsonify(_memory(operator.held())), 200


async def profile(operator: Operator) -> Answer:
    """Where the threads of the process are, sampled for some seconds."""
    given = parse_query(request.query_string)
    seconds = whole_number(given.get(b"seconds", b""), "seconds", MAX_PROFILE_S)
    if not seconds:
        raise Problem.INVALID_REQUEST.error("seconds must be at least 1")
    return Response(await operator.profiler.profile(seconds), content_type=_TEXT), 200


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
