"""TLS follows its files: renewed ones are loaded, and damaged ones leave those in use."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from streamd.config.settings import ConfigError, ServerConfig
from streamd.http.credentials.tls_files import POLL_INTERVAL_S, TlsFiles, export_expiry
from streamd.http.door.listeners import server_tls
from streamd.process.metrics import Metrics
from tests.http.pki import make_pki
from tests.support.server_process import ServerProcess

PATIENCE_S = 60.0


def files_in(directory: Path) -> ServerConfig:
    """The configuration of a fresh certificate."""
    pki = make_pki(directory)
    return ServerConfig(tls_cert=str(pki.certificate), tls_key=str(pki.key))


def replace_with_a_new_certificate(directory: Path) -> None:
    """Rename new files over the old ones, as tools that renew certificates do."""
    (directory / "new").mkdir(exist_ok=True)
    made = make_pki(directory / "new")
    for file in (made.certificate, made.key):
        file.rename(directory / file.name)


def loaded(config: ServerConfig) -> TlsFiles[ssl.SSLContext]:
    tls = server_tls(config)
    assert tls is not None
    return tls


def test_tls_before_1_2_is_not_spoken(tmp_path: Path) -> None:
    assert loaded(files_in(tmp_path))().minimum_version is ssl.TLSVersion.TLSv1_2


def test_unchanged_files_are_not_loaded_again(tmp_path: Path) -> None:
    tls = loaded(files_in(tmp_path))
    before = tls()
    tls.look()
    assert tls() is before


def test_files_that_were_replaced_are_loaded(tmp_path: Path) -> None:
    tls = loaded(files_in(tmp_path))
    before = tls()
    replace_with_a_new_certificate(tmp_path)
    tls.look()
    renewed = tls()
    assert renewed is not before
    tls.look()
    assert tls() is renewed


def test_a_link_that_leads_to_other_files_is_noticed(tmp_path: Path) -> None:
    """As orchestrators replace mounted secrets."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files_in(tmp_path / name)
    (tmp_path / "now").symlink_to("one")
    now = tmp_path / "now"
    tls = loaded(ServerConfig(tls_cert=str(now / "cert.pem"), tls_key=str(now / "key.pem")))
    before = tls()
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(now)
    tls.look()
    assert tls() is not before


def drop_the_certificate(directory: Path) -> None:
    (directory / "cert.pem").unlink()


def damage_the_key(directory: Path) -> None:
    (directory / "key.pem").write_text("rubbish")


def renew_the_certificate_alone(directory: Path) -> None:
    key = (directory / "key.pem").read_text()
    replace_with_a_new_certificate(directory)
    (directory / "key.pem").write_text(key)


@pytest.mark.parametrize(
    "damage", [drop_the_certificate, damage_the_key, renew_the_certificate_alone]
)
def test_damaged_files_leave_the_loaded_ones_in_use_until_they_are_repaired(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    tls = loaded(files_in(tmp_path))
    before = tls()
    damage(tmp_path)
    with capture_logs() as logs:
        tls.look()
        tls.look()
    assert tls() is before
    assert [entry["log_level"] for entry in logs] == ["error"], "it is told once for each change"
    replace_with_a_new_certificate(tmp_path)
    tls.look()
    assert tls() is not before


def expiry_in_metrics(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        sample.labels["section"]: sample.value
        for family in families
        if family.name == "streamd_tls_certificate_expiry_time_seconds"
        for sample in family.samples
    }


def test_a_metric_has_the_expiry_of_the_certificate_in_use(tmp_path: Path) -> None:
    def expiry_of_file() -> float:
        certificate = x509.load_pem_x509_certificate((tmp_path / "cert.pem").read_bytes())
        return certificate.not_valid_after_utc.timestamp()

    config = files_in(tmp_path)
    tls, metrics = loaded(config), Metrics()
    export_expiry(metrics, {"server": tls, "cluster": None})
    before = expiry_of_file()
    assert expiry_in_metrics(metrics) == {"server": before}
    authority = trustme.CA()
    soon = datetime.now(UTC) + timedelta(days=3)
    issued = authority.issue_cert("localhost", not_after=soon)
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    tls.look()
    assert expiry_in_metrics(metrics) == {"server": before}, "its key does not belong to it"
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls.look()
    assert expiry_in_metrics(metrics) == {"server": expiry_of_file()}
    assert expiry_of_file() == int(soon.timestamp())


def test_a_key_that_needs_a_password_is_refused_without_asking_for_it(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    config = files_in(tmp_path)
    key = serialization.load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "key.pem").write_bytes(sealed)
    with pytest.raises(ConfigError, match=r"server\.tls_key"):
        server_tls(config)


async def test_files_are_looked_at_every_few_seconds(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    tls = loaded(files_in(tmp_path))
    before = tls()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tls.follow)
        await trio.testing.wait_all_tasks_blocked()
        replace_with_a_new_certificate(tmp_path)
        await trio.sleep(POLL_INTERVAL_S + 1)
        nursery.cancel_scope.cancel()
    assert tls() is not before


# -- a whole server -------------------------------------------------------------------------------


class Connection:
    """A TLS connection that stays open, and trusts anyone."""

    def __init__(self, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket = context.wrap_socket(plain)
        self.certificate = self._socket.getpeercert(binary_form=True)

    def answers(self) -> bool:
        self._socket.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b'"ok"' not in received:
            data = self._socket.recv(65536)
            if not data:
                return False
            received += data
        return received.startswith(b"HTTP/1.1 200")

    def close(self) -> None:
        self._socket.close()


def shows_another(port: int, before: bytes | None) -> bool:
    """Whether a new connection is shown another certificate than `before`."""
    connection = Connection(port)
    connection.close()
    return connection.certificate != before


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_renewed_certificate_is_shown_to_new_connections_and_ends_none(
    tmp_path: Path, workers: int
) -> None:
    config = files_in(tmp_path)
    environment = {
        "STREAMD_SERVER_TLS_CERT": str(config.tls_cert),
        "STREAMD_SERVER_TLS_KEY": str(config.tls_key),
        "STREAMD_SERVER_WORKERS": str(workers),
        "STREAMD_LOG_FORMAT": "json",
    }
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        assert server.process is not None
        older = Connection(server.port)
        replace_with_a_new_certificate(tmp_path)
        deadline = time.monotonic() + PATIENCE_S
        while not shows_another(server.port, older.certificate):
            assert time.monotonic() < deadline
        assert older.answers()
        newer = Connection(server.port)
        # Files that are as they were are loaded again for SIGHUP only.
        (tmp_path / "key.pem").write_text("rubbish")
        os.kill(server.process.pid, signal.SIGHUP)
        while server.output.count('"level": "error"') < workers:
            assert time.monotonic() < deadline, server.output
        assert older.answers()
        assert newer.answers()
        Connection(server.port).close()
        assert server.stop() == 0
