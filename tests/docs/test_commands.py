"""Every code block of README, docs, examples and man pages does what it shows.

A page's commands run in their order, in one shell, on a server that nobody used before. A block
that needs more than that, such as a bucket in S3, is named with the test that runs it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamd.client import Client, Refused
from tests.docs.pages import ROOT, Block, blocks, pages, steps
from tests.docs.terminal import Terminal
from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess, wait_until
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess
from tests.support.supervised import Supervisor

URL = "http://127.0.0.1:4437"

# Pages whose commands run on a server that is there already; in the others they start it.
ON_A_SERVER = ["docs/buckets.md", "docs/limits.md", "docs/snapshots-and-bootstrap.md"]
ON_A_SERVER += ["docs/index.md", "README.md", "man/streamd-client.1"]
WITHOUT_A_SERVER = ["docs/auth.md", "man/streamd.1"]

# Blocks that run elsewhere: by page and language, the tests that run what they show.
ELSEWHERE = {
    ("docs/api.md", "console"): "tests/http/test_api_page.py",
    ("docs/audit.md", "console"): "tests/spark/test_audit.py",
    ("docs/backup-and-restore.md", "console"): "tests/backup/test_commands.py",
    ("docs/formats.md", "hex"): "tests/spark/test_formats_page.py",
    ("docs/moving.md", "console"): "tests/official_clients/test_moving.py",
    ("docs/moving.md", "python"): "tests/official_clients/test_moving.py",
    ("docs/proofs.md", "python"): "tests/docs/test_commands.py",
    ("docs/python.md", "python"): "tests/client/test_documentation.py",
    ("docs/spark-cold-store.md", "python"): "tests/spark/test_sources.py",
    ("docs/spark-cold-store.md", "sh"): "tests/spark/test_standalone.py",
    ("docs/spark-streams.md", "console"): "tests/spark/test_worked_example.py",
    ("docs/spark-streams.md", "python"): "tests/spark/test_worked_example.py",
    ("docs/spark-streams.md", "sql"): "tests/spark/test_catalog.py",
    ("docs/state.md", "python"): "tests/state_db/test_guide.py",
    ("docs/tutorial.md", "console"): "tests/docs/test_tutorial.py",
    ("docs/tutorial.md", "html"): "tests/docs/test_tutorial.py",
    ("docs/tutorial.md", "python"): "tests/docs/test_tutorial.py",
    ("examples/README.md", "console"): "tests/examples/test_tokens.py",
    ("examples/agent/README.md", "console"): "tests/examples/test_agent.py",
    ("examples/chat/README.md", "console"): "tests/examples/test_chat.py",
    ("examples/editor/README.md", "console"): "tests/examples/test_editor.py",
    ("examples/jobs/README.md", "console"): "tests/examples/test_jobs.py",
    ("examples/langgraph/README.md", "console"): "tests/examples/test_langgraph.py",
    ("examples/langgraph/README.md", "python"): "tests/examples/test_langgraph.py",
    ("examples/nextjs/README.md", "console"): "tests/examples/test_nextjs.py",
    ("examples/table/README.md", "console"): "tests/examples/test_table.py",
    ("examples/usage/README.md", "console"): "tests/spark/test_example_usage.py",
    ("examples/verify/README.md", "console"): "tests/examples/test_verify.py",
    ("examples/webhooks/README.md", "console"): "tests/examples/test_webhooks.py",
    ("examples/woken/README.md", "console"): "tests/examples/test_woken.py",
    ("man/streamd-audit.1", "man"): "tests/spark/test_audit.py",
    ("man/streamd-backup.1", "man"): "tests/backup/test_commands.py",
}
# Figures, and files of programs that are not ours.
SHOWN_ONLY = ("", "text", "javascript", "yaml")

README_PYTHON = ("README.md", "python")

# The programs of these blocks take minutes: what is tested is that they are there.
NAMED_ONLY = ["CONTRIBUTING.md", "docs/benchmarks.md"]


def is_named_only(command: str) -> bool:
    return re.search(r"\bmake [.\w]|-m bench\b|-m pytest", command) is not None


def found_in(page: str, language: str) -> list[Block]:
    return [block for block in blocks(page) if block.language.partition(" ")[0] == language]


def in_shell(
    directory: Path, environment: dict[str, str], replaced: dict[str, str], url: str
) -> Terminal:
    """A shell with the files that a page says its reader has."""
    (directory / "access.log").write_text("GET /\nGET /about\n")
    (directory / "journal").write_text('{"MESSAGE":"started"}\n{"MESSAGE":"stopped"}\n')
    replaced = {"journalctl -f -o json": "cat journal", **replaced}
    if shutil.which("jq") is None:
        replaced["jq ."] = f"{sys.executable} -m json.tool"
    return Terminal(directory, environment, replaced, url)


@contextmanager
def beside_a_server(directory: Path, **settings: str) -> Iterator[Terminal]:
    """A shell on a machine where `streamd serve` runs, with these variables."""
    with ServerProcess(directory / "data", environment=settings) as server:
        replaced = {URL: server.url, "http://10.0.0.1:4437": server.url}
        with in_shell(directory, {"STREAMD_URL": server.url}, replaced, server.url) as shell:
            yield shell


@contextmanager
def before_a_server(directory: Path, others: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """A shell on a machine where a page starts the server itself. `others` are replaced, too."""
    address = f"127.0.0.1:{unused_port()}"
    url = f"http://{address}"
    environment = {"STREAMD_URL": url, "STREAMD_SERVER_LISTEN": address}
    replaced = {URL: url, "/var/lib/streamd": str(directory / "data"), **(others or {})}
    with in_shell(directory, environment, replaced, url) as shell:
        yield shell


def configuration_of(cluster: ClusterProcesses, newcomer: NodeProcess) -> str:
    """The file of a node that is to be added."""
    routes = [cluster.peer_address(number) for number in (1, 2, 3)]
    return (
        f"[server]\nnode_id = {newcomer.node_id}\n"
        f'listen = "{newcomer.url.removeprefix("http://")}"\ndata_dir = "{newcomer.data_dir}"\n'
        f'[cluster]\nname = "jepsen"\nlisten = "{cluster.peer_address(newcomer.node_id)}"\n'
        f"routes = {json.dumps(routes)}\n"
    )


@contextmanager
def beside_a_cluster(directory: Path) -> Iterator[Terminal]:
    """A shell that reaches three nodes under a supervisor, with the configurations of two more."""
    with Supervisor(directory) as supervisor:
        cluster = ClusterProcesses(directory, environment=supervisor.environment, proxied=False)
        supervisor.cluster = cluster
        with cluster:
            nodes = cluster.nodes
            replaced = {f"http://10.0.0.{number}:4437": nodes[number].url for number in (1, 2, 3)}
            for number in (4, 5):
                text = configuration_of(cluster, cluster.prepare_newcomer(number))
                (directory / f"node{number}.toml").write_text(text)
                replaced[f"10.0.0.{number}:4438"] = cluster.peer_address(number)
            # The listener for operators is that of clients where no other is configured.
            replaced["http://127.0.0.1:4439"] = nodes[1].url
            replaced["--wait"] = "--wait --window 1s"
            environment = {"STREAMD_URL": ",".join(nodes[number].url for number in (1, 3))}
            with in_shell(directory, environment, replaced, nodes[4].url) as shell:
                yield shell


def run(page: str, shell: Terminal, wanted: str = "") -> None:
    """Run the commands of a page, or of those blocks that match `wanted`."""
    language = "console" if page.endswith(".md") else "man"
    ran = 0
    for block in found_in(page, language):
        if re.search(wanted, block.text):
            for step in steps(block):
                if not is_named_only(step.command):
                    shell.follow(step)
                    ran += 1
    assert ran > 2, "the page has more commands"


@pytest.mark.parametrize(
    "page",
    [
        page if page == "README.md" else pytest.param(page, marks=pytest.mark.long)
        for page in ON_A_SERVER
    ],
)
def test_the_commands_of_a_page_do_what_it_shows(page: str, tmp_path: Path) -> None:
    with beside_a_server(tmp_path) as shell:
        run(page, shell)


@pytest.mark.parametrize("page", WITHOUT_A_SERVER)
def test_a_page_leads_from_nothing_to_what_it_shows(page: str, tmp_path: Path) -> None:
    with before_a_server(tmp_path) as shell:
        run(page, shell)


@pytest.mark.long
def test_operations_of_a_cluster_do_what_the_page_shows(tmp_path: Path) -> None:
    with beside_a_cluster(tmp_path) as shell:
        run("docs/operations.md", shell, wanted=r"\A(?!.*streamd (cold|log-))(?s:.*)")


def has_head(client: Client) -> bool:
    try:
        client.request("GET", "/cluster/log-head")
    except Refused:
        return False
    return True


@pytest.mark.long
def test_operations_of_the_cold_store_do_what_the_page_shows(tmp_path: Path) -> None:
    cold = {"STREAMD_COLD_BACKEND": "fs", "STREAMD_COLD_FS_PATH": str(tmp_path / "cold")}
    with beside_a_server(tmp_path, **cold) as shell:
        with Client(shell.url) as client:
            wait_until(lambda: has_head(client), "the first head is signed")
        run("docs/operations.md", shell, wanted="streamd (cold|log-)")


@pytest.mark.long
def test_a_proof_is_made_and_verified_as_the_page_shows(tmp_path: Path) -> None:
    cold = {"STREAMD_COLD_BACKEND": "fs", "STREAMD_COLD_FS_PATH": str(tmp_path / "cold")}
    with beside_a_server(tmp_path, **cold) as shell:
        with Client(shell.url) as client:
            wait_until(lambda: has_head(client), "the first head is signed")
        run("docs/proofs.md", shell)
    by_hand = [sys.executable, "-c", found_in("docs/proofs.md", "python")[0].text]
    done = subprocess.run(by_hand, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "the same root\n", done.stderr


def test_the_python_of_the_readme_follows_the_stream_until_it_is_closed(tmp_path: Path) -> None:
    program = found_in("README.md", "python")[0].text
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        with subprocess.Popen(
            [sys.executable, "-u", "-c", program.replace(URL, server.url)],
            stdout=subprocess.PIPE,
            text=True,
        ) as started:
            assert started.stdout is not None
            assert [started.stdout.readline() for _ in range(2)] == [
                "{'step': 1}\n",
                "{'step': 2}\n",
            ]
            client.stream("agents/run-1").append_json({"step": 3}, close=True)
            assert started.stdout.read() == "{'step': 3}\n"
        assert started.returncode == 0


@pytest.mark.parametrize("page", [*NAMED_ONLY, "README.md"])
def test_the_targets_and_programs_that_a_page_names_exist(page: str) -> None:
    named = 0
    for block in found_in(page, "console"):
        for step in steps(block):
            if target := re.search(r"\bmake ([a-z-]+)", step.command):
                subprocess.run(["make", "-n", target[1]], cwd=ROOT, check=True, capture_output=True)
            elif module := re.search(r"-m (bench[.\w]*)", step.command):
                assert (ROOT / (module[1].replace(".", "/") + ".py")).exists()
            elif files := re.search(r"-m pytest (\S+)", step.command):
                assert (ROOT / files[1]).exists()
            else:
                assert page not in NAMED_ONLY, step.command
                continue
            named += 1
    assert named


def test_configurations_and_bodies_are_well_formed() -> None:
    for page in pages():
        for block in found_in(page, "toml"):
            assert tomllib.loads(block.text), str(block)
        for block in found_in(page, "json"):
            assert json.loads(block.text), str(block)


def test_no_code_block_is_left_out() -> None:
    run: Mapping[str, str] = {
        **dict.fromkeys(ON_A_SERVER + WITHOUT_A_SERVER + NAMED_ONLY, "here"),
        "docs/operations.md": "here",
        "docs/proofs.md": "here",
    }
    left_out = []
    for page in pages():
        for block in blocks(page):
            language = block.language.partition(" ")[0]
            elsewhere = ELSEWHERE.get((page, language))
            if language in ("console", "man") and page in run:
                continue
            if language in (*SHOWN_ONLY, "toml", "json") or (page, language) == (
                "README.md",
                "python",
            ):
                continue
            if elsewhere is None or not (ROOT / elsewhere).exists():
                left_out.append(f"{block} ({language}): run by {elsewhere}")
    assert not left_out, "\n".join(left_out)
