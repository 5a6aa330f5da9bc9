"""Many commands at a time, forked from one process that has imported what they import.

Run as a program: it reads the commands from standard input, and writes how each ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import click

# More would wait for each other's processor, and not for the server.
_AT_A_TIME = 6
_ROOT = Path(__file__).parents[2]
_INPUT = b'{"a": 1}\n'


class Ended(NamedTuple):
    """How a command ended: negative for a signal."""

    status: int
    took_s: float
    errors: str


def leaves(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Each command below a group, with its words."""
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    for name in command.list_commands(click.Context(command)):
        inner = command.get_command(click.Context(command), name)
        assert inner is not None
        yield from leaves(inner, (*words, name))


def run_all(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], directory: Path
) -> dict[str, Ended]:
    """Run commands, each with some JSON as its input, and wait for all of them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.client.many", str(directory)],
        input=json.dumps(commands).encode(),
        env={**os.environ, **environment},
        cwd=_ROOT,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    return {name: Ended(*ended) for name, ended in json.loads(done.stdout).items()}


def _main(directory: Path) -> None:
    import httpx  # noqa: F401 - so that no command spends its time on that

    import streamd.client.driving  # noqa: F401
    from streamd.commands.cli import main

    list(leaves(main))
    commands: dict[str, list[str]] = json.load(sys.stdin)
    waiting, running = list(commands), dict[int, tuple[str, float]]()
    ended: dict[str, Ended] = {}
    while waiting or running:
        if waiting and len(running) < _AT_A_TIME:
            name = waiting.pop()
            pid = os.fork()
            if pid == 0:
                _become(commands[name], directory / name.replace(" ", "-"))
            running[pid] = name, time.monotonic()
            continue
        pid, status = os.wait()
        name, began = running.pop(pid)
        errors = (directory / name.replace(" ", "-")).read_text()
        took_s = time.monotonic() - began
        ended[name] = Ended(os.waitstatus_to_exitcode(status), took_s, errors)
    json.dump(ended, sys.stdout)


def _become(arguments: list[str], errors: Path) -> NoReturn:
    """Be a command, in a forked process."""
    from streamd.commands.cli import main

    read, write = os.pipe()
    os.write(write, _INPUT)
    os.close(write)
    os.dup2(read, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    sys.argv = ["streamd", *arguments]
    try:
        main(prog_name="streamd")
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
