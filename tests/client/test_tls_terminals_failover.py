"""The client with TLS, terminals, and clusters that lose their leader."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from tests.client.running import Shell, heard
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.client_certificates import issue
from tests.support.server_process import ServerProcess


def test_a_named_private_ca_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    certificate = str(tmp_path / "server.pem")
    environment = {"STREAMD_SERVER_TLS_CERT": certificate, "STREAMD_SERVER_TLS_KEY": certificate}
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        streamd = Shell(server.url)
        trusting = ("--cacert", str(tmp_path / "ca.pem"))
        streamd("create", "secret", *trusting)
        streamd("append", "secret", *trusting, given=b"hush")
        assert streamd("read", "secret", *trusting) == b"hush"
        assert "CERTIFICATE_VERIFY_FAILED" in streamd.fails(3, "read", "secret")


def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca, certificate = str(tmp_path / "ca.pem"), str(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(certificate)
    config = tmp_path / "streamd.toml"
    config.write_text(
        f'[server]\ntls_cert = "{certificate}"\ntls_key = "{certificate}"\ntls_client_ca = "{ca}"\n'
        '[auth]\nmode = "required"\n'
        '[[auth.certificates]]\ncommon_name = "ci"\nscopes = ["create:*", "read:*"]\n'
    )
    tls = {"STREAMD_SERVER_TLS_CERT": certificate}  # So that it is asked by https.
    with ServerProcess(
        tmp_path / "data", flags=["--config", str(config)], environment=tls
    ) as server:
        streamd = Shell(f"https://localhost:{server.port}")
        shown = (
            "--cacert",
            ca,
            "--cert",
            str(issue(authority, tmp_path, common_names=["ci"]).file),
        )
        streamd("create", "secret", *shown)
        assert streamd("read", "secret", *shown) == b""
        assert "needs a token" in streamd.fails(1, "read", "secret", "--cacert", ca)
        refused = streamd.run("read", "secret", "--cert", ca)
        assert refused.returncode == 2
        assert b"--cert cannot be used" in refused.stderr


@pytest.mark.long
def test_a_tail_and_an_append_continue_when_their_leader_dies(tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        leader = cluster.leader()
        nodes = [leader, *(node for node in cluster.alive if node is not leader)]
        streamd = Shell(",".join(node.url for node in nodes))
        streamd("create", "demo/news", "-t", "json")
        with (
            streamd.started("tail", "-f", "demo/news") as reader,
            streamd.started("append", "demo/news", "--lines", "--close") as writer,
        ):
            assert writer.stdin is not None
            writer.stdin.write(b"1\n")
            assert heard(reader, 2) == b"1\n"
            leader.kill()
            writer.stdin.write(b"2\n")
            assert heard(reader, 2) == b"2\n"
            writer.stdin.close()
            assert (writer.wait(60), reader.wait(60)) == (0, 0)
        assert streamd("read", "demo/news") == b"1\n2\n"


@pytest.mark.long
def test_a_long_upload_shows_a_bar_on_a_terminal_and_only_there(tmp_path: Path) -> None:
    # Long enough to show the bar; it is not sent to the end.
    file = tmp_path / "file"
    with file.open("wb") as target:
        target.truncate(4_000_000_000)
    with ServerProcess(tmp_path / "data") as server:
        streamd = Shell(server.url)
        streamd("create", "large", "-t", "bytes")
        screen, terminal = pty.openpty()
        with file.open("rb") as source:
            process = subprocess.Popen(
                [sys.executable, "-m", "streamd", "append", "large"],
                env={**streamd.environment, "TERM": "xterm", "COLUMNS": "100"},
                stdin=source,
                stdout=subprocess.DEVNULL,
                stderr=terminal,
            )
        os.close(terminal)
        shown = b""
        while not (b"append to large" in shown and b"/4.0 GB" in shown):
            piece = _read(screen)
            assert piece, shown
            shown += piece
        # Once: a second interrupt could meet the interpreter's own exit.
        process.send_signal(signal.SIGINT)
        while piece := _read(screen):
            shown += piece
        os.close(screen)
        assert process.wait(60) == -signal.SIGINT, shown
        streamd("create", "other", "-t", "bytes")
        assert streamd("append", "other", given=bytes(48 << 20)) == b"", "nor anything on stderr"


def _read(screen: int) -> bytes:
    """What comes next; nothing when the other end is closed."""
    try:
        return os.read(screen, 4096)
    except OSError:
        return b""
