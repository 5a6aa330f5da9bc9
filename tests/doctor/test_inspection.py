"""What a process finds out about its machine."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest

from streamd.config.settings import ClusterConfig, ColdConfig, Config, ServerConfig
from streamd.hosts.inspection.disks import disk, kind_of, low_bytes, measure_syncs
from streamd.hosts.inspection.files import private_files
from streamd.hosts.inspection.machine import limits
from streamd.hosts.inspection.ports import reach
from streamd.hosts.inspection.survey import survey
from tests.http.pki import make_pki

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /var/lib rw - xfs /dev/sdb1 rw
24 23 0:22 / /var/lib/with\\040space rw shared:2 - nfs4 server:/x rw
25 22 0:23 / /over rw - ext4 /dev/sdc rw
26 22 0:24 / /over rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc", "ext4"),
        ("/var/library", "ext4"),
        ("/var/lib/streamd", "xfs"),
        ("/var/lib", "xfs"),
        ("/var/lib/with space/data", "nfs4"),
        ("/over/data", "tmpfs"),
    ],
)
def test_the_file_system_of_a_path_is_the_one_mounted_nearest_above(path: str, kind: str) -> None:
    assert kind_of(Path(path), MOUNTS) == kind


def test_a_disk_is_examined_where_the_directory_will_be(tmp_path: Path) -> None:
    found = disk(tmp_path / "not" / "yet", None)
    assert found.error is None
    assert found.kind
    assert 0 < found.free_bytes <= found.total_bytes
    assert found.low_bytes == low_bytes(None, found.total_bytes)
    assert disk(tmp_path, 77).low_bytes == 77


def test_measured_syncs_leave_nothing(tmp_path: Path) -> None:
    found = measure_syncs(tmp_path / "data")
    assert os.listdir(tmp_path) == []
    assert 1 <= found.count <= 200
    assert found.p99_s is not None
    assert 0 < found.p99_s < 60


def test_syncs_where_nothing_may_be_written_are_an_error() -> None:
    with pytest.raises(OSError, match="proc"):
        measure_syncs(Path("/proc/self"))


def test_limits_are_those_of_the_process_and_the_kernel(tmp_path: Path) -> None:
    found = limits()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert found.max_open_files == (None if hard == resource.RLIM_INFINITY else hard)
    assert found.open_files >= 3
    (tmp_path / "self" / "fd").mkdir(parents=True)
    (tmp_path / "self" / "status").write_text("Name:\tx\nVmSwap:\t  2048 kB\n")
    (tmp_path / "sys" / "vm").mkdir(parents=True)
    (tmp_path / "sys" / "vm" / "max_map_count").write_text("1024\n")
    other = limits(tmp_path)
    assert (other.max_maps, other.overcommit, other.swapped_bytes) == (1024, None, 2048 * 1024)


def test_certificates_are_read_with_the_names_that_others_look_for(tmp_path: Path) -> None:
    pki = make_pki(tmp_path)
    server = ServerConfig(
        advertise="streams.example.net:4437",
        tls_cert=str(pki.certificate),
        tls_key=str(pki.key),
        tls_client_ca=str(tmp_path / "absent.pem"),
    )
    own, authority = survey(Config(server=server)).certificates
    assert own.key == "server.tls_cert"
    assert set(own.names) == {"localhost", "127.0.0.1"}
    assert own.wanted == ["streams.example.net"]
    assert own.begins_ms < own.ends_ms
    assert own.error is None
    assert authority.key == "server.tls_client_ca"
    assert "absent.pem" in str(authority.error)


def test_peers_look_for_a_nodes_host_and_its_own_name(tmp_path: Path) -> None:
    pki = make_pki(tmp_path)
    cluster = ClusterConfig(
        name="prod",
        listen="0.0.0.0:4438",
        advertise="10.0.0.2:4438",
        tls_cert=str(pki.certificate),
        tls_key=str(pki.key),
        tls_ca=str(pki.certificate),
    )
    own, authority = survey(Config(server=ServerConfig(node_id=2), cluster=cluster)).certificates
    assert own.key == "cluster.tls_cert"
    assert own.wanted == ["10.0.0.2", "node-2.prod.streamd"]
    assert (authority.key, authority.wanted) == ("cluster.tls_ca", [])
    assert authority.ends_ms == own.ends_ms


@pytest.mark.parametrize("listen", ["0.0.0.0:4437", "127.0.0.1:4437", "[::]:4437"])
def test_nobody_looks_for_the_name_of_an_address_that_is_not_one_host(
    listen: str, tmp_path: Path
) -> None:
    pki = make_pki(tmp_path)
    server = ServerConfig(listen=listen, tls_cert=str(pki.certificate), tls_key=str(pki.key))
    [own] = survey(Config(server=server)).certificates
    assert own.wanted == []


def test_files_and_directories_that_others_may_read_are_found(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    (tmp_path / "key").chmod(0o640)
    (tmp_path / "data").mkdir(mode=0o700)
    config = Config(
        server=ServerConfig(tls_key=str(tmp_path / "key"), data_dir=str(tmp_path / "data")),
        cold=ColdConfig(backend="fs", fs_path=str(tmp_path / "absent")),
    )
    found = {one.key: (one.is_open, one.error) for one in private_files(config)}
    assert found == {"server.tls_key": (True, None), "server.data_dir": (False, None)}
    (tmp_path / "key").unlink()
    [key, _] = private_files(config)
    assert "No such file" in str(key.error)


async def test_an_address_is_reached_or_the_error_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert await reach(address) is None
    assert await reach(address) == "connection refused"
    assert "not host:port" in str(await reach("nowhere"))
