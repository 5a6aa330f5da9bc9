"""A store with TLS with a CA of its own, read with temporary credentials: by every way in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from minio.credentials.providers import AssumeRoleProvider
from pyspark.sql import SparkSession
from urllib3 import PoolManager

from bench.bucket import Shape, write_bucket
from streamd.objectstore.fs import FsStore
from streamd_audit import store as audit_store
from streamd_audit.errors import StoreFailed
from streamd_audit.options import CLEAN, NOT_RUN, start
from streamd_audit.sources import register
from streamd_audit.store import open_store
from tests.spark.conftest import BUCKET
from tests.spark.test_reading_store import ask
from tests.support.minio import MinioServer, minio_or_skip
from tests.support.s3_proxy import S3Proxy

pytestmark = pytest.mark.long

ALL = os.environ.get("AUDIT_TESTS") == "all"
STREAM = "team-2/runs/000002"
# Read-only, and of this bucket alone.
POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["s3:GetObject", "s3:ListBucket"],
                "Resource": [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"],
            }
        ],
    }
)


class Vault(NamedTuple):
    """A cluster's bucket in a MinIO whose certificate no system trusts, and the means of access."""

    url: str
    options: dict[str, Any]
    entries: int

    def without(self, *names: str, **changed: str) -> dict[str, str]:
        left = {name: value for name, value in self.options.items() if name not in names}
        return {**left, **changed}

    def flags(self, *without: str) -> list[str]:
        """The options as arguments of a job."""
        return [
            part
            for name, value in self.without(*without).items()
            for part in (f"--{name.replace('_', '-')}", value)
        ]


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    directory = tmp_path_factory.mktemp("vault")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    written = write_bucket(FsStore(directory / "cold"), directory / "rows", Shape(1, 200))
    with MinioServer(minio_or_skip(), directory / "data", certificate=certificate) as server:
        client = server.client()
        client.make_bucket(BUCKET)
        for path in filter(Path.is_file, (directory / "cold").rglob("*")):
            name = f"vault/{path.relative_to(directory / 'cold')}"
            client.fput_object(BUCKET, name, str(path))
        role = AssumeRoleProvider(
            sts_endpoint=server.endpoint,
            access_key=server.access_key_id,
            secret_key=server.secret_access_key,
            policy=POLICY,
            region="us-east-1",
            http_client=PoolManager(ca_certs=str(directory / "ca.pem")),
        ).retrieve()
        assert role.session_token
        yield Vault(
            f"s3://{BUCKET}/vault",
            {
                "endpoint": server.endpoint,
                "access_key": role.access_key,
                "secret_key": role.secret_key,
                "session_token": role.session_token,
                "ca_file": str(directory / "ca.pem"),
            },
            written.last_index,
        )


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_store, "PAUSES_S", (0.01, 0.01, 0.01))


@pytest.mark.parametrize("job", ["log_job", *(["audit"] if ALL else [])])
def test_an_audit_reads_the_store(
    vault: Vault, spark: SparkSession, tmp_path: Path, job: str
) -> None:
    arguments = ["--store", vault.url, "--out", str(tmp_path), *vault.flags()]
    assert start(job, arguments) == CLEAN
    facts = json.loads((tmp_path / "findings.json").read_text())["facts"]
    assert facts["entry_count"] == vault.entries


def test_a_job_without_the_token_or_the_ca_says_what_is_wrong(
    vault: Vault, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for missing, told in (("session_token", "session token is wrong"), ("ca_file", "CERTIFICATE")):
        arguments = ["--store", vault.url, "--out", str(tmp_path), *vault.flags(missing)]
        assert start("log_job", arguments) == NOT_RUN
        assert told in capsys.readouterr().err.splitlines()[-1]


def test_the_sources_of_objects_read_the_store(vault: Vault, spark: SparkSession) -> None:
    register(spark)
    log = spark.read.format("streamd_log").options(store=vault.url, **vault.options).load()
    assert log.select("index").distinct().count() == vault.entries


def test_streams_are_read_from_the_store(vault: Vault) -> None:
    assert ask(store=vault.url, stream=STREAM, **vault.options)


def test_a_malformed_ca_file_is_reported_at_once(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for file in ("absent.pem", "empty.pem"):
        with pytest.raises(StoreFailed, match=f"the CA file .*{file} cannot be used"):
            open_store(vault.url, vault.without(ca_file=str(tmp_path / file)))


def test_a_secret_may_stay_in_the_environment(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", vault.options["secret_key"])
    assert open_store(vault.url, vault.without("secret_key")).folders()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", vault.options["access_key"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", vault.options["session_token"])
    assert open_store(vault.url, vault.without("secret_key", "access_key", "session_token"))


def test_a_token_of_the_environment_goes_with_the_key_of_the_environment(
    minio: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another identity's token would be refused together with a given key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another")
    options = {"access_key": minio.access_key_id, "secret_key": minio.secret_access_key}
    with S3Proxy(minio.port) as proxy:
        store = open_store(f"s3://{BUCKET}/", {**options, "endpoint": proxy.endpoint})
        assert store.folders() is not None
