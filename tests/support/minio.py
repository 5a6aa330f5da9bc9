"""A real MinIO for tests: found on the PATH, or built from its official source, once a machine.

Run as a program it prepares the server ahead of the tests, because building takes some minutes.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from minio import Minio
from minio.error import MinioException
from trustme import LeafCert
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from tests.support import tether
from tests.support.go_programs import GoProgram, NotBuilt
from tests.support.ports import unused_port
from tests.support.processes import RunningProcess
from tests.support.tools import MINIO, skip_without

# The last state of the official repository; pinned as Go pins commits without a semantic version.
_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
_PROGRAM = GoProgram("minio", "github.com/minio/minio", _VERSION)
# Set where a run without MinIO must not pass.
REQUIRED = "STREAMD_REQUIRE_MINIO"


def find_minio(*, build: bool = True) -> Path:
    """The server's executable, built if need be. Raises `NotBuilt`."""
    return _PROGRAM.find(build=build)


def minio_or_skip() -> Path:
    """The server's executable; without one the test is skipped, or fails where it is required."""
    try:
        return find_minio()
    except NotBuilt as reason:
        _skip_or_fail(str(reason))


def _skip_or_fail(reason: str) -> NoReturn:
    if os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, but {reason}", pytrace=False)
    skip_without(MINIO, reason)


class MinioServer(RunningProcess):
    """One server over one directory; it may be killed and started again on the same port."""

    access_key_id = "streamd-tests"
    secret_access_key = "not-a-secret"

    def __init__(
        self, executable: Path, directory: Path, *, certificate: LeafCert | None = None
    ) -> None:
        """With a `certificate` it speaks TLS; its `client` then believes anything."""
        super().__init__()
        self._executable = executable
        self.directory = directory
        self._certificates = directory.parent / "certificates"
        self._has_tls = certificate is not None
        if certificate is not None:
            self._certificates.mkdir()
            certificate.private_key_pem.write_to_path(str(self._certificates / "private.key"))
            for blob in certificate.cert_chain_pems:
                blob.write_to_path(str(self._certificates / "public.crt"), append=True)
        self.port = unused_port()
        self.endpoint = f"{'https' if self._has_tls else 'http'}://127.0.0.1:{self.port}"
        self._log = directory.parent / "minio.log"

    def start(self) -> None:
        """Start, and wait until it serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self.process = tether.start(
                [
                    str(self._executable),
                    "server",
                    "--quiet",
                    "--address",
                    f"127.0.0.1:{self.port}",
                    "--certs-dir",
                    str(self._certificates),
                    str(self.directory),
                ],
                env={
                    **os.environ,
                    "MINIO_ROOT_USER": self.access_key_id,
                    "MINIO_ROOT_PASSWORD": self.secret_access_key,
                    "MINIO_BROWSER": "off",
                    "MINIO_UPDATE": "off",
                    "GOMAXPROCS": "2",
                },
                stdout=log,
                stderr=log,
            )
        self.await_alive(self._serves, "serving")

    @property
    def output(self) -> str:
        return self._log.read_text()

    def client(self) -> Minio:
        """A client with all rights, for operators' tasks."""
        return Minio(
            f"127.0.0.1:{self.port}",
            self.access_key_id,
            self.secret_access_key,
            secure=self._has_tls,
            region="us-east-1",
            # A request too early would be told to retry in a minute, and the client would wait.
            http_client=PoolManager(retries=False, cert_reqs="CERT_NONE"),
        )

    def files_of(self, bucket: str, name: str) -> list[Path]:
        """The files of an object of this name on its disk: ``xl.meta``, and parts unless small."""
        return sorted(
            path for path in (self.directory / bucket / name).rglob("*") if path.is_file()
        )

    def _serves(self) -> bool:
        """Its health routes succeed before it takes requests; so make one."""
        with suppress(MinioException, HTTPError, OSError):
            self.client().list_buckets()
            return True
        return False


def main() -> None:
    """Prepare a MinIO server, or say why there is none."""
    try:
        find_minio(build=False)
        return
    except NotBuilt:
        print("building minio for the tests, once; this takes some minutes", flush=True)
    try:
        find_minio()
    except NotBuilt as reason:
        if os.environ.get(REQUIRED):
            sys.exit(f"{REQUIRED} is set, but {reason}")
        print(f"THE TESTS AGAINST MINIO WILL BE SKIPPED: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
