"""Threads for blocking work, on machines that give a thread little stack."""

from __future__ import annotations

import resource
import subprocess
import sys

_DECODE = """
import msgspec, trio
from streamd.blocking import in_thread

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
