"""A revoked token opens nothing at any node, whatever becomes of the leader meanwhile."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.http.authorized import ROOT, Authorized
from tests.jepsen_like.cluster_processes import ClusterProcesses, wait_until

TEXT = {"Content-Type": "text/plain"}


@pytest.mark.long
def test_no_read_is_answered_after_a_revocation_while_leaders_die(tmp_path: Path) -> None:
    """Requests are sent all the time, from before the revocation until every node refuses."""
    environment = {"STREAMD_AUTH_MODE": "required", "STREAMD_ROOT_TOKEN": ROOT}
    with ClusterProcesses(tmp_path, proxied=False, environment=environment) as cluster:
        place = Authorized([node.url for node in cluster.nodes.values()], httpx.Client(timeout=20))
        assert place.ask("PUT", "/v1/stream/dying/s", headers=TEXT).status_code == 201
        for _ in range(2):
            token = place.token("read:dying/*")
            leader = cluster.leader()
            others = [node for node in cluster.nodes.values() if node is not leader]
            with ThreadPoolExecutor() as pool, Readers(token) as readers:
                for node in cluster.nodes.values():
                    pool.submit(readers.read, node.url)
                readers.wait_for_answers(200, at_least=30)
                revoked = pool.submit(revoke, others[0].url, place.named(token))
                leader.kill()
                readers.revoked_at = revoked.result()
                readers.wait_for_answers(401, at_least=30)
                leader.start()
                cluster.wait_ready()
                readers.wait_until_all_refuse([node.url for node in cluster.nodes.values()])
            assert readers.late == []


def revoke(url: str, token_id: str) -> float:
    """Revoke a token, as often as it takes. Returns when a node said that it is done."""
    while True:
        with suppress(httpx.HTTPError):
            path = f"{url}/auth/tokens/{token_id}"
            answer = httpx.delete(path, headers={"Authorization": f"Bearer {ROOT}"}, timeout=30)
            if answer.status_code in (204, 404):
                return time.monotonic()


class Readers:
    """Read a stream with a token until closed, and note what was answered too late."""

    def __init__(self, token: str) -> None:
        self.revoked_at = math.inf
        self.late: list[tuple[str, int]] = []
        self._token = token
        self._answers: list[tuple[float, str, int]] = []
        self._is_closed = False

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self.late = [
            (url, status)
            for began, url, status in self._answers
            if began > self.revoked_at and status not in (401, 503)
        ]

    def read(self, url: str) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        while not self._is_closed:
            began = time.monotonic()
            with suppress(httpx.HTTPError):
                answer = httpx.get(f"{url}/v1/stream/dying/s", headers=headers, timeout=20)
                self._answers.append((began, url, answer.status_code))

    def wait_for_answers(self, status: int, *, at_least: int) -> None:
        seen = len(self._answers)
        wait_until(
            lambda: sum(found == status for *_, found in self._answers[seen:]) >= at_least,
            f"{at_least} answers {status}",
        )

    def wait_until_all_refuse(self, urls: list[str]) -> None:
        seen = len(self._answers)
        wait_until(
            lambda: {url for _, url, status in self._answers[seen:] if status == 401} >= {*urls},
            "all nodes refuse",
        )
