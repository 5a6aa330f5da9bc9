"""Client certificates: on both servers and with workers, with and without tokens beside them."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from streamd.config.auth import CertificateConfig
from streamd.config.settings import AuthConfig
from streamd.http.credentials.client_certificates import parse_certificate
from streamd.http.protocol.connections import ConnectionCount
from streamd.http.protocol.messages import Request
from tests.http.authorized import ROOT
from tests.http.pki import Pki
from tests.http.serving import PATIENCE_S, Serving, serving
from tests.support.client_certificates import Issued, issue
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_async_client

TEXT = {"Content-Type": "text/plain"}
STREAM = "/v1/stream/agents/run-1"
CI = "spiffe://example.net/ci"
LISTED = [
    CertificateConfig(uri=CI, scopes=["create:agents/*", "read:agents/*"]),
    CertificateConfig(common_name="ops", scopes=["admin:*"]),
]
PLACES = ["HTTP/1.1", "HTTP/2"]


class Clients:
    """An authority for clients, and the way to the server with its certificates."""

    def __init__(self, directory: Path, pki: Pki) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.file = directory / "clients.pem"
        self.authority.cert_pem.write_to_path(str(self.file))
        self._pki = pki

    @property
    def settings(self) -> dict[str, Any]:
        """Of the section `[server]`."""
        pki = self._pki
        return {
            "tls_cert": str(pki.certificate),
            "tls_key": str(pki.key),
            "tls_client_ca": str(self.file),
        }

    def issue(self, *names: x509.GeneralName, **settings: Any) -> Issued:
        return issue(self.authority, self.directory, *names, **settings)

    def ci(self, **settings: Any) -> Issued:
        """A certificate of the first name that is listed."""
        return self.issue(x509.UniformResourceIdentifier(CI), **settings)

    def tls(self, issued: Issued | None) -> ssl.SSLContext:
        return self._pki.client if issued is None else issued.client(self._pki.authority)

    def client(
        self, url: str, issued: Issued | None, place: str = "HTTP/1.1", **settings: Any
    ) -> httpx.AsyncClient:
        is_2 = place == "HTTP/2"
        return checked_async_client(
            base_url=url, verify=self.tls(issued), http1=not is_2, http2=is_2,
            timeout=PATIENCE_S, **settings,
        )  # fmt: skip


@pytest.fixture
def clients(tmp_path: Path, pki: Pki) -> Clients:
    return Clients(tmp_path, pki)


@asynccontextmanager
async def guarded(
    clients: Clients, place: str = "HTTP/1.1", mode: Any = "required", **settings: Any
) -> AsyncIterator[Serving]:
    auth = AuthConfig(mode=mode, root_token=ROOT, certificates=LISTED)
    http = "hypercorn" if place == "HTTP/2" else "front-door"
    given = {"http": http, "allowed_origins": [], **clients.settings, **settings}
    async with serving(clients.directory, auth=auth, **given) as server:
        yield server


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("place", PLACES)
async def test_a_certificate_permits_what_is_listed_for_its_name(
    clients: Clients, place: str
) -> None:
    async with guarded(clients, place) as server:
        async with clients.client(server.url, clients.ci(), place) as client:
            made = await client.put(STREAM, headers=TEXT, content=b"one")
            assert made.status_code == 201
            assert (await client.get(STREAM)).content == b"one"
            assert code(await client.get("/v1/stream/other")) == (403, "INSUFFICIENT_SCOPE")
            refused = await client.post(STREAM, headers=TEXT, content=b"x")
            assert code(refused) == (403, "INSUFFICIENT_SCOPE")
            assert code(await client.get("/auth/tokens"))[0] == 403
        operator = clients.issue(common_names=["ops"])
        async with clients.client(server.url, operator, place) as client:
            assert (await client.get("/auth/tokens")).status_code == 200


@pytest.mark.parametrize("place", PLACES)
async def test_without_a_listed_certificate_a_request_needs_a_token(
    clients: Clients, place: str
) -> None:
    async with guarded(clients, place) as server:
        others = [
            None,
            clients.issue(x509.UniformResourceIdentifier(CI + "/x")),
            clients.issue(x509.DNSName("ops"), common_names=["ops", "ci"]),
        ]
        for issued in others:
            async with clients.client(server.url, issued, place) as client:
                assert code(await client.get(STREAM)) == (401, "AUTHENTICATION_REQUIRED")
                root = {"Authorization": f"Bearer {ROOT}"}
                assert (await client.get(STREAM, headers=root)).status_code == 404


@pytest.mark.parametrize("place", PLACES)
async def test_of_a_certificate_and_a_token_the_token_decides(clients: Clients, place: str) -> None:
    async with (
        guarded(clients, place) as server,
        clients.client(server.url, clients.ci(), place) as client,
    ):
        await client.put(STREAM, headers=TEXT)
        for value in ("Bearer wrong", "Basic eDp5", ""):
            answer = await client.get(STREAM, headers={"Authorization": value})
            assert code(answer) == (401, "INVALID_TOKEN")
        root = {"Authorization": f"Bearer {ROOT}"}
        assert (await client.get("/auth/tokens", headers=root)).status_code == 200
        assert (await client.get(STREAM)).status_code == 200


async def test_of_a_certificate_and_a_signed_url_the_url_decides(clients: Clients) -> None:
    async with guarded(clients) as server, clients.client(server.url, clients.ci()) as client:
        await client.put(STREAM, headers=TEXT)
        for value in ("", "1.2.3", f"1.{1:016x}.1700000000.GET.x.{'A' * 86}"):
            answer = await client.get(f"{STREAM}?signed={value}")
            assert code(answer) == (401, "INVALID_SIGNED_URL")


async def test_a_certificate_signs_no_urls(clients: Clients) -> None:
    async with guarded(clients) as server, clients.client(server.url, clients.ci()) as client:
        answer = await client.post("/auth/sign", json={"url": STREAM})
        assert code(answer) == (409, "CANNOT_SIGN")


async def test_no_header_can_pass_for_a_certificate(clients: Clients) -> None:
    der = clients.ci().der.hex()
    async with guarded(clients) as server, clients.client(server.url, None) as client:
        for name in ("X-Client-Cert", "X-Forwarded-Client-Cert", "Client-Cert", "SSL-Client-Cert"):
            answer = await client.get(STREAM, headers={name: f"URI={CI};Cert={der}"})
            assert code(answer) == (401, "AUTHENTICATION_REQUIRED")


async def refused_in_the_handshake(clients: Clients, url: str, issued: Issued | None) -> None:
    with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
        async with clients.client(url, issued) as client:
            await client.get("/healthz")


async def test_a_certificate_that_is_not_valid_ends_the_handshake(
    clients: Clients, tmp_path: Path
) -> None:
    async with guarded(clients) as server:
        stranger = issue(trustme.CA(), tmp_path, x509.UniformResourceIdentifier(CI))
        for issued in (
            stranger,
            clients.ci(life_s=-1),
            clients.ci(usage=ExtendedKeyUsageOID.SERVER_AUTH),
        ):
            await refused_in_the_handshake(clients, server.url, issued)
        assert server.connections == 0


async def test_an_authority_below_another_may_be_the_only_one(clients: Clients) -> None:
    above = clients.authority
    clients.authority = above.create_child_ca()
    clients.authority.cert_pem.write_to_path(str(clients.file))
    async with guarded(clients) as server:
        async with clients.client(server.url, clients.ci()) as client:
            assert (await client.put(STREAM, headers=TEXT)).status_code == 201
        clients.authority = above
        await refused_in_the_handshake(clients, server.url, clients.ci())


async def test_certificates_may_be_required_of_all_clients(clients: Clients) -> None:
    for mode in ("required", "none"):
        async with guarded(clients, mode=mode, tls_client_auth="required") as server:
            await refused_in_the_handshake(clients, server.url, None)
            async with clients.client(server.url, clients.issue(common_names=["x"])) as client:
                assert (await client.get("/healthz")).status_code == 200


async def test_without_an_authority_for_clients_none_is_asked_for_a_certificate(
    clients: Clients,
) -> None:
    settings: dict[str, Any] = {"tls_client_ca": None}
    async with (
        guarded(clients, **settings) as server,
        clients.client(server.url, clients.ci()) as client,
    ):
        assert code(await client.get(STREAM)) == (401, "AUTHENTICATION_REQUIRED")


@pytest.mark.parametrize("place", PLACES)
async def test_a_live_reader_ends_with_its_certificate(clients: Clients, place: str) -> None:
    settings = {"sse_lifetime_ms": 3_600_000, "sse_heartbeat_ms": 3_600_000}
    async with guarded(clients, place, **settings) as server:
        root = {"Authorization": f"Bearer {ROOT}"}
        issued = clients.ci()
        async with clients.client(server.url, issued, place) as client:
            assert (await client.put(STREAM, headers={**TEXT, **root})).status_code == 201
            left_s = issued.certificate.not_valid_after_utc.timestamp() - time.time()
            server.clock.ahead_ms += int((left_s - 4) * 1000)
            async with client.stream("GET", f"{STREAM}?offset=-1&live=sse") as answer:
                assert answer.status_code == 200
                async for _ in answer.aiter_lines():
                    pass
            # The connection stays, and the certificate has expired.
            assert code(await client.get(STREAM)) == (401, "INVALID_TOKEN")
            assert (await client.get(STREAM, headers=root)).status_code == 200


async def test_authorities_of_clients_follow_their_file(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(clients) as server:
        async with clients.client(server.url, clients.ci()) as client:
            await client.put(STREAM, headers=TEXT)
            former, clients.authority = clients.ci(), trustme.CA()
            clients.authority.cert_pem.write_to_path(str(clients.file))
            assert server.tls is not None
            server.tls.look()
            # Open connections go on.
            assert (await client.get(STREAM)).status_code == 200
        await refused_in_the_handshake(clients, server.url, former)
        async with clients.client(server.url, clients.ci()) as client:
            assert (await client.get(STREAM)).status_code == 200


async def test_a_web_page_cannot_use_the_certificate_of_its_browser(clients: Clients) -> None:
    """A browser sends it for any page, unlike a token."""
    evil, home = {"Origin": "https://evil.example"}, {"Origin": "https://app.example"}
    settings: dict[str, Any] = {"allowed_origins": ["https://app.example"]}
    async with guarded(clients) as server, clients.client(server.url, clients.ci()) as client:
        await client.put(STREAM, headers=TEXT)
        assert code(await client.get(STREAM, headers=evil)) == (403, "ORIGIN_NOT_ALLOWED")
        assert (await client.get(STREAM, headers={"Origin": server.url})).status_code == 200
        # With a token of its own it may, as before.
        root = {"Authorization": f"Bearer {ROOT}"}
        answer = await client.get(STREAM, headers={**evil, **root})
        assert answer.status_code == 200
        assert "Origin" in answer.headers["vary"]
    async with (
        guarded(clients, **settings) as server,
        clients.client(server.url, clients.ci()) as client,
    ):
        assert (await client.get(STREAM, headers=home)).status_code == 200
        assert code(await client.get(STREAM, headers=evil)) == (403, "ORIGIN_NOT_ALLOWED")


async def test_a_second_connection_has_no_certificate_of_the_first(clients: Clients) -> None:
    async with guarded(clients) as server, clients.client(server.url, clients.ci()) as client:
        await client.put(STREAM, headers=TEXT)
        assert (await client.get(STREAM)).status_code == 200
        async with clients.client(server.url, None) as other:
            assert code(await other.get(STREAM)) == (401, "AUTHENTICATION_REQUIRED")


async def test_records_name_the_certificate_and_whom_it_stands_for(clients: Clients) -> None:
    async with guarded(clients) as server:
        for issued, name in ((clients.ci(), f"cert:{CI}"), (clients.issue(), None)):
            async with clients.client(server.url, issued) as client:
                await client.get(STREAM)
            certificate = parse_certificate(issued.der)
            assert certificate is not None
            request = Request(
                "GET",
                b"/",
                b"",
                {},
                b"",
                cast("Any", None),
                connection=ConnectionCount(certificate),
            )
            fingerprint = issued.certificate.fingerprint(hashes.SHA256()).hex()[:16]
            seen = server.service.authority.seen(request)
            assert seen == (name, f"certificate {fingerprint}")
            request.headers[b"authorization"] = b"Bearer wrong"
            assert server.service.authority.seen(request) == (None, None)


@pytest.mark.long
async def test_certificates_reach_the_groups_process_from_its_workers(clients: Clients) -> None:
    config = clients.directory / "streamd.toml"
    config.write_text(
        '[auth]\nmode = "required"\n'
        f'[[auth.certificates]]\nuri = "{CI}"\nscopes = ["create:agents/*", "read:agents/*"]\n'
    )
    environment = {
        f"STREAMD_SERVER_{name.upper()}": value for name, value in clients.settings.items()
    }
    environment |= {"STREAMD_SERVER_WORKERS": "2", "STREAMD_ROOT_TOKEN": ROOT}
    environment |= {"STREAMD_SERVER_SSE_LIFETIME_MS": "3600000"}
    environment |= {"STREAMD_SERVER_SSE_HEARTBEAT_MS": "3600000"}
    process = ServerProcess(
        clients.directory / "data", flags=["--config", str(config)], environment=environment
    )
    with process:
        url = f"https://localhost:{process.port}"
        async with clients.client(url, clients.ci()) as client:
            assert (await client.put(STREAM, headers=TEXT, content=b"one")).status_code == 201
        # Connections of their own, so that each worker gets some.
        for _ in range(8):
            async with clients.client(url, clients.ci()) as client:
                assert (await client.get(STREAM)).content == b"one"
            async with clients.client(url, None) as client:
                assert code(await client.get(STREAM)) == (401, "AUTHENTICATION_REQUIRED")
        issued = clients.ci(life_s=8)
        ends_s = issued.certificate.not_valid_after_utc.timestamp()
        async with (
            clients.client(url, issued) as client,
            client.stream("GET", f"{STREAM}?offset=-1&live=sse") as answer,
        ):
            assert answer.status_code == 200
            async for _ in answer.aiter_lines():
                pass
        assert time.time() >= ends_s
