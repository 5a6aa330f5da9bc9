"""The two wheels of one tree, each in a fresh environment and away from the repository.

The server's wheel is built from the archive of the sources, so that this is complete as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamd
from tests.packaging.conftest import Built
from tests.packaging.installed import ROOT, InstalledServer, Venv, output, run
from tests.support.skewed_clock import needs_compiler

pytestmark = pytest.mark.long

PROGRAM = """
from streamd.client import Client
from streamd.state.db import StreamDB as StreamDB

def steps(url: str) -> list[object]:
    with Client(url) as client:
        stream = client.stream("agents/run-1")
        stream.create("application/json")
        stream.append_json({"step": 1}, {"step": 2}, close=True)
        return list(stream.follow_json())
"""
WRONG_PROGRAM = """
from streamd.client import Client

Client("http://127.0.0.1:4437").stream("demo").create(17)
"""


@pytest.fixture(scope="module")
def server_venv(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    return Venv(tmp_path_factory.mktemp("server") / "venv", built.wheel)


@pytest.fixture(scope="module")
def client_venv(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    return Venv(tmp_path_factory.mktemp("client") / "venv", built.client_wheel)


@pytest.fixture(scope="module")
def server(
    server_venv: Venv, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InstalledServer]:
    with InstalledServer(
        [server_venv.streamd], tmp_path_factory.mktemp("data") / "data"
    ) as running:
        yield running


@needs_compiler
def test_one_wheel_serves_every_python_of_a_platform(built: Built) -> None:
    assert "-cp311-abi3-linux_" in built.wheel.name
    assert built.client_wheel.name.endswith("-py3-none-any.whl")


def test_wheels_are_configured_for_each_python_and_machine(built: Built) -> None:
    """cibuildwheel refuses settings that it does not know; it builds in containers, which are not
    here."""
    program = Path(sys.executable).with_name("cibuildwheel")
    said = output(program, "--print-build-identifiers", "--platform", "linux", cwd=ROOT)
    assert set(said.split()) == {
        f"cp{python}-{system}_{machine}"
        for python in ("311", "312", "313", "314")
        for system in ("manylinux", "musllinux")
        for machine in ("x86_64", "aarch64")
    }


@needs_compiler
def test_the_installed_command_is_this_release_with_its_extension(server_venv: Venv) -> None:
    said = output(server_venv.streamd, "--version", cwd=server_venv.directory)
    assert said == f"streamd, version {streamd.__version__} (batch I/O in C)\n"


def test_the_commands_work_against_the_installed_server(
    server_venv: Venv, server: InstalledServer
) -> None:
    def command(*words: str, given: str = "") -> str:
        where = server_venv.directory
        return output(server_venv.streamd, *words, cwd=where, given=given, STREAMD_URL=server.url)

    command("create", "demo/hello")
    command("append", "demo/hello", given="hi\n")
    assert command("read", "demo/hello") == "hi\n"
    assert "hello" in command("list", "demo")


def test_each_command_has_its_help_and_so_what_it_imports(server_venv: Venv) -> None:
    program = """
import click
from streamd.commands.cli import main
context = click.Context(main)
for name in main.list_commands(context):
    command = main.get_command(context, name)
    print(name, len(command.get_help(click.Context(command))))
"""
    done = server_venv.run_python(program)
    assert done.returncode == 0, done.stderr
    listed = {line.split()[0] for line in done.stdout.splitlines()}
    assert {"serve", "verify", "doctor", "backup"} <= listed


def test_a_server_with_workers_starts_them_from_the_installation(
    server_venv: Venv, tmp_path: Path
) -> None:
    flags = ["--workers", "2"]
    with InstalledServer([server_venv.streamd], tmp_path / "data", flags=flags) as serving:
        output(server_venv.streamd, "create", "demo/of-two", cwd=tmp_path, STREAMD_URL=serving.url)
        assert serving.stop() == 0


@pytest.mark.parametrize(
    "file",
    [
        "man/man1/streamd.1",
        "man/man1/streamd-client.1",
        "bash-completion/completions/streamd",
        "zsh/site-functions/_streamd",
        "fish/vendor_completions.d/streamd.fish",
        "streamd/config/streamd.toml",
        "streamd/config/prometheus/alerts.yml",
        "streamd/config/grafana/streamd-node.json",
        "streamd/systemd/streamd.service",
    ],
)
def test_the_servers_wheel_brings_what_is_not_python(server_venv: Venv, file: str) -> None:
    assert (server_venv.directory / "share" / file).read_text()


def test_each_file_of_the_package_is_in_the_servers_wheel(server_venv: Venv) -> None:
    source = ROOT / "src" / "streamd"
    installed = next((server_venv.directory / "lib").glob("python*/site-packages/streamd"))
    listed = output("git", "ls-files", ".", cwd=source).split()
    assert [name for name in listed if not (installed / name).exists()] == [
        "http/sockets/_batch_io.c"
    ]


def test_a_users_program_is_type_checked_with_either_wheel(
    server_venv: Venv, client_venv: Venv
) -> None:
    for venv in (server_venv, client_venv):
        assert venv.type_errors(PROGRAM) == ""
        assert "arg-type" in venv.type_errors(WRONG_PROGRAM)


def test_the_clients_wheel_works_by_itself(client_venv: Venv, server: InstalledServer) -> None:
    done = client_venv.run_python(f"{PROGRAM}\nprint(steps({server.url!r}))")
    assert done.stdout == "[{'step': 1}, {'step': 2}]\n", done.stderr


def test_the_clients_wheel_brings_httpx_anyio_and_msgspec_alone(client_venv: Venv) -> None:
    program = "from importlib.metadata import distributions as d\nprint(*(x.name for x in d()))"
    installed = set(client_venv.run_python(program).stdout.lower().split())
    of_httpx_and_anyio = {"certifi", "h11", "httpcore", "idna", "sniffio", "typing_extensions"}
    assert installed - of_httpx_and_anyio == {
        "durable-streamd-client",
        "httpx",
        "anyio",
        "msgspec",
    }


def test_each_module_of_the_clients_wheel_can_be_imported(client_venv: Venv) -> None:
    program = """
import importlib, pkgutil, streamd
names = [m.name for m in pkgutil.walk_packages(streamd.__path__, "streamd.")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""
    done = client_venv.run_python(program)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_both_wheels_in_one_environment_are_refused_with_a_way_out(
    built: Built, tmp_path: Path
) -> None:
    both = Venv(tmp_path / "venv", built.client_wheel)
    both.install(built.wheel, flags=["--no-deps"])  # it does not come to needing them
    for command in (["-c", "import streamd.client"], [both.streamd, "--version"]):
        done = run(both.python, *command, cwd=tmp_path)
        assert done.returncode == 1
        said = done.stderr.splitlines()[-1]
        assert said.startswith("ImportError: durable-streamd and durable-streamd-client are both")
        assert said.endswith("pip uninstall durable-streamd durable-streamd-client")
