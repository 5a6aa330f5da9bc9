"""The tutorial, followed as a reader would: each command, each file, and the page in Chromium."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamd.client import Client
from tests.docs.pages import ROOT, Block, blocks, steps
from tests.docs.terminal import Terminal
from tests.docs.test_commands import URL, before_a_server, beside_a_server, is_named_only
from tests.examples.browsing import chromium
from tests.support.ports import unused_port
from tests.support.tools import JAVA, has_java, needs

pytestmark = pytest.mark.long

PAGE = "docs/tutorial.md"
NODES = (1, 2, 3)


def part(number: int) -> list[Block]:
    """The blocks of a part, by the number in its title."""
    titles = (ROOT / PAGE).read_text().splitlines()
    lines = {int(match[1]): at for at, line in enumerate(titles, 1) if (match := _title(line))}
    end = lines.get(number + 1, len(titles))
    return [block for block in blocks(PAGE) if lines[number] < block.line < end]


def _title(line: str) -> re.Match[str] | None:
    return re.match(r"## (\d+)\. ", line)


def follow(number: int, shell: Terminal, directory: Path) -> int:
    """Save the files of a part and run its commands. Returns how many these were."""
    ran = 0
    for block in part(number):
        language, _, file = block.language.partition(" ")
        if file:
            (directory / file).write_text(block.text.replace(URL, shell.url))
        elif language == "console":
            for step in steps(block):
                if not is_named_only(step.command) and "export PATH" not in step.command:
                    shell.follow(step)
                    ran += 1
    return ran


def test_streams_are_shared_by_a_shell_a_program_a_page_and_an_agent(tmp_path: Path) -> None:
    pages = f"127.0.0.1:{unused_port()}"
    with before_a_server(tmp_path, {"http.server 8000": f"http.server {pages[10:]}"}) as shell:
        assert [follow(number, shell, tmp_path) for number in range(1, 6)] == [1, 8, 1, 2, 3]
        with Client(shell.url) as client, chromium() as page:
            page.open(f"http://{pages}/steps.html")
            page.wait("li", ["step 1", "step 2", "step 3"])
            client.stream("demo/steps").append_json({"step": 4})
            page.wait("li", ["step 1", "step 2", "step 3", "step 4"])


@contextmanager
def before_a_cluster(directory: Path) -> Iterator[Terminal]:
    """A shell in a directory with the sample configurations, at ports that are free here."""
    replaced = {
        f"127.0.0.1:{base + node}": f"127.0.0.1:{unused_port()}"
        for base in (4440, 4450)
        for node in NODES
    }
    (directory / "config/cluster").mkdir(parents=True)
    for node in NODES:
        text = (ROOT / f"config/cluster/node{node}.toml").read_text()
        for there, here in replaced.items():
            text = text.replace(there, here)
        (directory / f"config/cluster/node{node}.toml").write_text(text)
    with Terminal(directory, {}, replaced, "") as shell:
        yield shell


def test_a_cluster_serves_without_one_of_its_nodes(tmp_path: Path) -> None:
    ran = 0
    with before_a_cluster(tmp_path) as shell:
        for block in part(6):
            for step in steps(block):
                # No node answers before a majority is there.
                if "streamd serve" in step.command:
                    shell.start(step.command)
                else:
                    shell.follow(step)
                ran += 1
    assert ran == 11


@needs(JAVA, has_java())
def test_the_steps_are_a_frame_in_spark(tmp_path: Path) -> None:
    with beside_a_server(tmp_path) as shell:
        with Client(shell.url) as client:
            stream = client.stream("demo/steps")
            stream.create("application/json")
            stream.append_json({"step": 1}, {"step": 2}, {"step": 3})
        assert follow(7, shell, tmp_path) == 1


def test_what_the_first_part_installs_is_a_target() -> None:
    named = [step.command for block in blocks(PAGE) for step in steps(block)]
    assert named[0] == "make .venv/.ready"
    subprocess.run(["make", "-n", ".venv/.ready"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["make", "-n", ".venv/.ready-spark"], cwd=ROOT, check=True, capture_output=True)
