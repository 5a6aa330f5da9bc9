"""`streamd config check`: what a node would start with, and why it could not."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result

from streamd.commands.cli import main
from streamd.config.loading import load
from streamd.config.names import keys_of
from streamd.config.settings import Config

TOKEN = "sd_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("STREAMD_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def check(text: str, *flags: str, environment: dict[str, str] | None = None) -> Result:
    Path("streamd.toml").write_text(text)
    arguments = ["config", "check", "--config", "streamd.toml", *flags]
    return CliRunner().invoke(main, arguments, env=environment or {})


def certificate(name: str) -> tuple[str, str]:
    """The files of a certificate of its own and its key."""
    issued = trustme.CA().issue_cert(name)
    issued.cert_chain_pems[0].write_to_path(f"{name}.pem")
    issued.private_key_pem.write_to_path(f"{name}.key")
    Path(f"{name}.key").chmod(0o600)
    return f"{name}.pem", f"{name}.key"


def test_it_prints_a_configuration_that_reads_as_the_same() -> None:
    done = check(
        '[server]\nallowed_hosts = ["a", "b"]\n[auth]\nmode = "required"\n'
        '[auth.jwt]\nissuer = "i"\naudience = "a"\njwks = "https://provider/keys"\n'
        '[auth.jwt.roles]\n"a b" = ["read:*"]\n',
        "--listen",
        "127.0.0.1:5000",
        environment={"STREAMD_SERVER_NODE_ID": "7"},
    )
    assert (done.exit_code, done.stderr) == (0, "")
    Path("printed.toml").write_text(done.stdout)
    printed = load(Path("printed.toml"), {}, {})
    assert printed.server.node_id == 7
    assert printed == load(
        Path("streamd.toml"),
        {"STREAMD_SERVER_NODE_ID": "7"},
        {"server": {"listen": "127.0.0.1:5000"}},
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[server]\nlissen = 1", "unknown key server.lissen; did you mean server.listen?"),
        ('[server]\ntls_cert = "no.pem"\ntls_key = "no.key"', "server.tls_cert, "),
        (
            '[server]\ntls_cert = "one.pem"\ntls_key = "two.key"',
            "server.tls_cert, ",
        ),
        ('[server]\nlisten = "nowhere.invalid:4437"\n[auth]\nmode = "required"', "server.listen: "),
        ('[server]\ndata_dir = "a-file"', "server.data_dir: a-file is not a directory"),
        ('[server]\ndata_dir = "a-file/data"', "a-file is not a directory"),
        ('[log]\naudit = "a-directory"', "log.audit: a-directory is a directory"),
        ('[admin]\nlisten = "127.0.0.1:4437"', "also the address of server.listen"),
        (
            '[cluster]\nname = "c"\nsecret_file = "short"',
            "cluster.secret_file: short has 5 bytes",
        ),
        ('[cluster]\nname = "c"\nsecret_file = "no"', "cluster.secret_file: [Errno 2]"),
        (
            '[auth]\nmode = "required"\n[auth.jwt]\nissuer = "i"\naudience = "a"\njwks = "no.json"',
            "auth.jwt.jwks: [Errno 2]",
        ),
        (
            (
                '[cold]\nbackend = "s3"\ns3_bucket = "abc"\ns3_ca = "no.pem"\n'
                's3_access_key_id = "a"\ns3_secret_access_key = "b"\n'
            ),
            "cold.s3_ca: no.pem: ",
        ),
    ],
)
def test_what_would_end_a_start_is_found_without_one(text: str, fault: str) -> None:
    Path("a-file").write_text("")
    Path("a-directory").mkdir()
    Path("short").write_text("short")
    Path("short").chmod(0o600)
    certificate("one")
    certificate("two")
    done = check(text)
    assert done.exit_code == 1, done.output
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert fault in line
    assert "can start" not in done.stdout


def test_all_faults_are_named_at_once_and_nothing_is_created() -> None:
    before = {*os.listdir(), "streamd.toml"}
    done = check(
        '[server]\ntls_cert = "no.pem"\ntls_key = "no.key"\n'
        '[cluster]\nname = "c"\nsecret_file = "no"\nlisten = "127.0.0.1:4437"\n'
    )
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 3
    assert set(os.listdir()) == before


def test_a_pair_that_fits_is_accepted_and_a_key_that_others_can_read_is_named() -> None:
    cert, key = certificate("one")
    text = f'[server]\ntls_cert = "{cert}"\ntls_key = "{key}"\n'
    assert (check(text).exit_code, check(text).stderr) == (0, "")
    Path(key).chmod(0o644)
    done = check(text)
    assert done.exit_code == 0
    assert "warning: server.tls_key: one.key is readable by other users" in done.stderr


def test_variables_of_kubernetes_are_named() -> None:
    done = check("", environment={"STREAMD_SERVICE_HOST": "10.0.0.1"})
    assert done.exit_code == 0
    assert "STREAMD_SERVICE_HOST is ignored" in done.stderr


def test_no_secret_is_printed() -> None:
    done = check(
        '[cold]\nbackend = "s3"\ns3_bucket = "abc"\ns3_access_key_id = "hush-id"\n'
        's3_secret_access_key = "$HUSH"\ns3_session_token = "hush-session"\n'
        '[auth.jwt]\nissuer = "i"\naudience = "a"\njwks = "https://user:hush@provider/keys"\n',
        "--json",
        environment={"HUSH": "hush-key", "STREAMD_ROOT_TOKEN": "hush-root"},
    )
    assert "hush" not in done.output
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert "auth.root_token is not a token" in told["errors"][0]


def test_every_key_of_a_secret_is_hidden() -> None:
    secret = {
        key
        for key in keys_of(Config)
        if any(word in key for word in ("token", "secret", "password", "access_key"))
    } - {"cluster.secret_file", "heads.token_file", "subscriptions.secret_file"}
    assert secret
    given = {
        section: "".join(
            f'{key.rpartition(".")[2]} = "hush"\n'
            for key in sorted(secret)
            if key.startswith(f"{section}.")
        )
        for section in ("cold", "heads")
    }
    done = check(f'[cold]\nbackend = "none"\n{given["cold"]}[heads]\n{given["heads"]}')
    assert done.exit_code == 0, done.output
    assert "hush" not in done.stdout
    printed = tomllib.loads(done.stdout)
    for key in secret - {"auth.root_token"}:
        section, _, name = key.partition(".")
        assert printed[section][name] == "***", key


@pytest.mark.parametrize(
    ("section", "warnings"),
    [
        ('kind = "manual"', []),
        ('kind = "command"\nrestart = ["true", "{id}"]', []),
        (
            'kind = "command"\nrestart = ["/nowhere/ctl"]\nlogs = ["true"]',
            ["supervisor.restart: /nowhere/ctl is not a program of this machine"],
        ),
        (
            'kind = "systemd"\nsudo = true\ninstall = ["/nowhere/install"]',
            [
                "supervisor.kind: systemctl is not a program of this machine",
                "supervisor.sudo: sudo is not a program of this machine",
                "supervisor.install: /nowhere/install is not a program of this machine",
            ],
        ),
        (
            'kind = "systemd"\nssh = "ops@{host}"',
            ["supervisor.ssh: ssh is not a program of this machine"],
        ),
        ('kind = "kubernetes"', ["supervisor.kind: kubectl is not a program of this machine"]),
    ],
)
def test_programs_of_the_supervisor_that_are_missing_are_named(
    section: str, warnings: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    true = shutil.which("true")
    assert true is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "true").symlink_to(true)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    done = check(f"[supervisor]\n{section}\n")
    assert (done.exit_code, done.stderr.splitlines()) == (
        0,
        [f"warning: {warning}" for warning in warnings],
    )
