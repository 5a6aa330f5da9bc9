"""No secret leaves the place where it belongs: two nodes with every kind of secret live through
errors, refusals, signals and crashes, and then every byte that they wrote or said is searched."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
import zstandard
from minio.error import S3Error

from streamd.auth.tokens import SECRET_BYTES, digest_of, mint
from tests.auth.provider import AUDIENCE, ISSUER, claims, key_set, signing_key
from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess, wait_until
from tests.support.minio import MinioServer, minio_or_skip

pytestmark = pytest.mark.long

SEED = 14
BUCKET = "secrets"
STREAM = "/v1/stream/agents/run"
JSON = {"Content-Type": "application/json"}
# What is searched for in the same way, and must be found: the search sees through all formats.
CANARY = b"canary-" + Random(SEED).randbytes(24).hex().encode()
_ZSTD = b"\x28\xb5\x2f\xfd"


def forms_of(secret: str) -> set[bytes]:
    """What a secret looks like in other people's encodings."""
    raw = secret.encode()
    found = {raw, raw.hex().encode(), b"".join(b"%%%02X" % byte for byte in raw)}
    found |= {quote(secret, safe).encode() for safe in ("", "/")}
    for lead in range(3):
        # Without what depends on the bytes before and after it.
        found.add(b64encode(b"\0" * lead + raw)[4 if lead else 0 : -4])
    return found


def test_all_encodings_are_searched_for() -> None:
    secret = "sd_5f0c_k3v7+/&="
    for around in ("", "x", "xy", "xyz"):
        text = f"{around}{secret}{around}".encode()
        for hidden in (text, b64encode(text), text.hex().encode(), quote(text).encode()):
            assert any(form in hidden for form in forms_of(secret))


class Scene(NamedTuple):
    """The nodes, what they said, and what they must not say."""

    cluster: ClusterProcesses
    minio: MinioServer
    directory: Path
    client: httpx.Client
    secrets: dict[str, str]
    # Everything that clients received, but answers that hand out a secret.
    answers: list[bytes]

    @property
    def nodes(self) -> list[NodeProcess]:
        return list(self.cluster.nodes.values())

    def ask(self, node: NodeProcess, method: str, path: str, **request: Any) -> httpx.Response:
        """A request whose answer is searched later."""
        answer = self.client.request(method, node.url + path, **request)
        self.answers.append(f"{answer.status_code} {answer.headers!r}".encode() + answer.content)
        return answer

    def make(self, node: NodeProcess, path: str, body: object, token: str) -> dict[str, Any]:
        """An answer that hands out a secret, which it must name only once."""
        headers = {"Authorization": f"Bearer {token}"}
        answer = self.client.post(node.url + path, json=body, headers=headers)
        assert answer.is_success, answer.text
        made: dict[str, Any] = answer.json()
        return made


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("secrets")
    random = Random(SEED)
    root = mint(random.getrandbits(63), random.randbytes(SECRET_BYTES))
    of_cluster, of_store = random.randbytes(32).hex(), random.randbytes(20).hex()
    (directory / "cluster-secret").write_text(of_cluster)
    key = signing_key("one")
    (directory / "jwks.json").write_bytes(key_set(key))
    minio = MinioServer(minio_or_skip(), directory / "minio" / "data")
    minio.secret_access_key = of_store
    environment = {
        "OPERATORS_TOKEN": root,
        "STORE_SECRET": of_store,
        "STREAMD_AUTH_MODE": "required",
        "STREAMD_AUTH_ROOT_TOKEN": "$OPERATORS_TOKEN",
        "STREAMD_AUTH_JWT_ISSUER": ISSUER,
        "STREAMD_AUTH_JWT_AUDIENCE": AUDIENCE,
        "STREAMD_AUTH_JWT_JWKS": str(directory / "jwks.json"),
        "STREAMD_CLUSTER_SECRET_FILE": str(directory / "cluster-secret"),
        "STREAMD_COLD_BACKEND": "s3",
        "STREAMD_COLD_S3_BUCKET": BUCKET,
        "STREAMD_COLD_S3_ENDPOINT": minio.endpoint,
        "STREAMD_COLD_S3_ACCESS_KEY_ID": minio.access_key_id,
        "STREAMD_COLD_S3_SECRET_ACCESS_KEY": "$STORE_SECRET",
        "STREAMD_COLD_FLUSH_AFTER_MS": "200",
        "STREAMD_COLD_TIMEOUT_MS": "2000",
        "STREAMD_LOG_LEVEL": "debug",
        "STREAMD_LOG_FORMAT": "json",
        "STREAMD_LOG_AUDIT": "stream:ops/audit",
        "STREAMD_SERVER_WORKERS": "2",
    }
    # Reads its token from its own environment.
    operators = {**environment, "STREAMD_ROOT_TOKEN": root}
    secrets = {
        "root token": root,
        "cluster secret": of_cluster,
        "key of the store": of_store,
        "JWT": key.sign(claims(time.time())).decode(),
        "forged token": mint(7, random.randbytes(SECRET_BYTES)),
        "password": random.randbytes(12).hex(),
    }
    with minio, httpx.Client(timeout=30) as client:
        minio.client().make_bucket(BUCKET)
        with ClusterProcesses(directory, 2, environment=operators, proxied=False) as cluster:
            yield Scene(cluster, minio, directory, client, secrets, [])


def hand_out(scene: Scene) -> None:
    """Make the secrets that the nodes themselves hand out."""
    one, two = scene.nodes
    root, secrets = scene.secrets["root token"], scene.secrets
    body = {"name": "ci", "scopes": ["read:agents/*", "append:agents/*", "create:agents/*"]}
    made = scene.make(one, "/auth/tokens", body, root)
    secrets["token"] = made["token"]
    body = {"name": "reader", "scopes": ["read:agents/*"]}
    secrets["lasting token"] = scene.make(one, "/auth/tokens", body, root)["token"]
    rotation = {"overlap_s": 3600}
    made = scene.make(two, f"/auth/tokens/{made['about']['id']}/rotate", rotation, root)
    secrets["rotated token"] = made["token"]
    wanted = {"url": STREAM, "methods": ["GET"]}
    wait_until(lambda: is_known(scene, made["token"]), "both nodes know the token")
    signed = scene.make(one, "/auth/sign", wanted, made["token"])
    secrets["signed URL"] = signed["url"].partition("?")[2].rpartition(".")[2]
    answer = scene.ask(one, "GET", STREAM + "?" + signed["url"].partition("?")[2])
    assert answer.status_code in (200, 404), answer.text


def is_known(scene: Scene, token: str) -> bool:
    answers = [scene.ask(node, "GET", STREAM, headers=bearer(token)) for node in scene.nodes]
    return all(answer.status_code != 401 for answer in answers)


def work(scene: Scene) -> None:
    """Use the secrets as intended."""
    token = scene.secrets["token"]
    text = {"Content-Type": "text/plain", **bearer(token)}
    for number, node in enumerate(scene.nodes):
        path = f"{STREAM}-{number}"
        assert scene.ask(node, "PUT", path, headers=text, content=CANARY).is_success
        assert scene.ask(node, "POST", path, headers=text, content=CANARY * 20_000).is_success
        assert scene.ask(node, "GET", path, headers=bearer(token)).is_success
        scene.ask(node, "GET", path, headers=bearer(scene.secrets["JWT"]))


def misuse(scene: Scene) -> None:
    """Put every secret where it is refused, in every place of a request."""
    root = scene.secrets["root token"]
    for node in scene.nodes:
        for secret in scene.secrets.values():
            for headers in (
                bearer(secret),
                {"Authorization": secret},
                {"Authorization": f"Basic {b64encode(f'ops:{secret}'.encode()).decode()}"},
                {"Cookie": f"token={secret}", "X-Api-Key": secret},
                {**bearer(root), "Stream-TTL": secret, "Stream-Seq": secret},
            ):
                scene.ask(node, "GET", f"{STREAM}?token={secret}&signed={secret}", headers=headers)
                scene.ask(node, "PUT", f"/cluster/limits/buckets/x?t={secret}", headers=headers)
            for method, path, body in (
                # Names and scopes are no secrets, and an error quotes them.
                ("POST", "/auth/tokens", {"name": "x", "scopes": secret}),
                ("POST", "/auth/tokens", {"name": "x", "scopes": ["read:*"], "token": secret}),
                ("POST", "/auth/sign", {"url": f"https://ops:{secret}@x/{secret}"}),
                ("POST", "/cluster/add", {"address": f"ops:{secret}@127.0.0.1:1"}),
                ("POST", "/cluster/transfer", {"node_id": secret}),
                ("PUT", "/cluster/limits/identities/x", {"password": secret}),
            ):
                scene.ask(node, method, path, headers=bearer(root), json=body)
        lacking = bearer(scene.secrets["token"])
        scene.ask(node, "GET", "/auth/tokens", headers=lacking)
        scene.ask(node, "POST", "/cluster/snapshot", headers=lacking, json={})


def look(scene: Scene) -> None:
    """Read what operators read."""
    operator = bearer(scene.secrets["root token"])
    for node in scene.nodes:
        for path in (
            "/metrics",
            "/cluster/status",
            "/cluster/cold",
            "/cluster/debug/tasks",
            "/cluster/debug/memory",
            "/cluster/debug/profile?seconds=1",
            "/auth/tokens",
            "/readyz/local",
        ):
            assert scene.ask(node, "GET", path, headers=operator).is_success
        trail = scene.ask(node, "GET", "/v1/stream/ops/audit", headers=operator)
        assert b"INVALID_TOKEN" in trail.content


def examine(scene: Scene) -> dict[str, bytes]:
    """What the doctor prints, and each file of a bundle of all nodes."""
    file = scene.directory / "bundle.tar.gz"
    given = {**os.environ, "STREAMD_TOKEN": scene.secrets["root token"]}
    found: dict[str, bytes] = {}
    for command in (["doctor"], ["debug", "bundle", "-o", str(file)]):
        ran = subprocess.run(
            [sys.executable, "-m", "streamd", *command, "--url", scene.nodes[0].url],
            env=given,
            capture_output=True,
            timeout=120,
        )
        found[command[0]] = ran.stdout + ran.stderr
    with tarfile.open(file) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found[f"bundle: {member.name}"] = content.read()
    for node in scene.nodes:
        for report in ("config.json", "log.txt", "metrics.txt", "profile.txt"):
            assert found[f"bundle: node-{node.node_id}/{report}"], report
    assert b"store.access" in found["doctor"]
    return found


def store(scene: Scene) -> None:
    """Let state, log and archive reach the cold store."""
    one, two = scene.nodes
    operator = bearer(scene.secrets["root token"])
    for node in scene.nodes:
        assert scene.ask(node, "POST", "/cluster/snapshot", headers=operator, json={}).is_success
    scene.ask(one, "POST", "/cluster/cold/flush", headers=operator, json={})
    wait_until(lambda: CANARY in objects_of(scene), "the cold store has the content")
    token_id = scene.secrets["token"].split("_")[1]
    digest = digest_of(scene.secrets["rotated token"].encode())
    wait_until(lambda: digest in objects_of(scene), "the archive has the token's hash")
    deleted = scene.ask(two, "DELETE", f"/auth/tokens/{token_id}", headers=operator)
    assert deleted.status_code == 204


def restore(scene: Scene) -> bytes:
    """Read the archive with the commands, with the right key and with a wrong one. Returns what
    they printed."""
    printed = b""
    environment = {**os.environ, **scene.nodes[0].environment}
    settings = {
        name: environment[name]
        for name in environment
        if not name.startswith(("STREAMD_CLUSTER", "STREAMD_SERVER"))
    }
    target = ["restore", "--data-dir", str(scene.directory / "restored"), "--no-fence"]
    for wrong in (True, False):
        given = {**settings, "STORE_SECRET": scene.secrets["password"]} if wrong else settings
        for command in (["backup", "verify"], target):
            ran = subprocess.run(
                [sys.executable, "-m", "streamd", *command],
                env=given,
                capture_output=True,
                timeout=120,
            )
            printed += ran.stdout + ran.stderr
            assert (ran.returncode == 0) != wrong, printed.decode()
    return printed


def break_all(scene: Scene) -> None:
    """Take the store away, and end the nodes in different ways."""
    one, two = scene.nodes
    scene.minio.kill()
    operator = bearer(scene.secrets["root token"])
    scene.ask(one, "POST", "/cluster/cold/flush", headers=operator, json={})
    wait_until(lambda: "cold" in one.output + two.output, "the store's absence is logged")
    for node in scene.nodes:
        assert node.process is not None
        os.kill(node.process.pid, signal.SIGHUP)
        resource.prlimit(node.process.pid, resource.RLIMIT_CORE, (0, 0))
    # A disk that fails: an exception that nothing handles.
    assert two.process is not None
    resource.prlimit(two.process.pid, resource.RLIMIT_FSIZE, (65536, 65536))
    with suppress(httpx.HTTPError):
        headers = {"Content-Type": "text/plain", **operator}
        scene.ask(two, "PUT", "/v1/stream/agents/last", headers=headers, content=b"x" * 200_000)
    assert two.wait() == 1
    assert "Traceback" in two.output or "error" in two.output
    assert one.process is not None
    os.kill(one.process.pid, signal.SIGABRT)
    assert one.wait() == -signal.SIGABRT


def objects_of(scene: Scene) -> bytes:
    """All objects in the cold store, and what is compressed in them."""
    client = scene.minio.client()
    found = b""
    for listed in client.list_objects(BUCKET, recursive=True):
        try:
            with client.get_object(BUCKET, listed.object_name) as answer:
                data = answer.read()
        except S3Error as error:
            if error.code != "NoSuchKey":
                raise
            continue  # It was removed after it was listed.
        found += listed.object_name.encode() + data + uncompressed(data)
    return found


def uncompressed(data: bytes) -> bytes:
    found, at = b"", data.find(_ZSTD)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            found += zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
        at = data.find(_ZSTD, at + 1)
    return found


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_no_secret_is_in_anything_that_a_node_writes_or_says(scene: Scene) -> None:
    hand_out(scene)
    work(scene)
    misuse(scene)
    store(scene)
    look(scene)
    places = examine(scene)
    for node in scene.nodes:
        assert node.stop() == 0
        node.start()
    scene.cluster.wait_ready()
    places |= {"objects": objects_of(scene), "commands": restore(scene)}
    break_all(scene)
    places |= {f"log of node {node.node_id}": node.output.encode() for node in scene.nodes}
    places["answers"] = b"\n".join(scene.answers)
    for node in scene.nodes:
        places |= files_below(node.data_dir)
    restored = files_below(scene.directory / "restored")
    assert_found(scene, places, restored)
    found = [
        (place, name, data[max(0, data.find(form) - 200) : data.find(form)])
        for place, data in {**places, **restored}.items()
        for name, secret in scene.secrets.items()
        for form in forms_of(secret)
        if form in data
    ]
    assert not found, found


def assert_found(scene: Scene, places: Mapping[str, bytes], restored: Mapping[str, bytes]) -> None:
    """The search would find what is there: content everywhere, and hashes of tokens on disks."""
    digest = digest_of(scene.secrets["rotated token"].encode())
    assert CANARY in places["answers"]
    assert CANARY in places["objects"]
    for node in scene.nodes:
        of_node = b"".join(data for name, data in places.items() if str(node.data_dir) in name)
        assert CANARY in of_node
        assert digest in of_node
    assert digest in places["objects"]
    # The other one has been deleted, which the archive may know by then.
    assert digest_of(scene.secrets["lasting token"].encode()) in b"".join(restored.values())
    assert b"INVALID_TOKEN" in places["answers"]
    assert len(places["log of node 1"]) > 1000
