"""Posts webhooks to receivers, which may be anyone's and behave in any way.

A name is resolved and its addresses are judged; the connection goes to the very address that was
judged, with the name in the Host header and in TLS. Nothing of an answer leads anywhere else:
redirects are not followed, and proxies, cookies and passwords of the environment are not used.
"""

from __future__ import annotations

import ssl
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import trio

from streamd import __version__
from streamd.config.settings import ConfigError
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.node.delivery.targets import NameNotResolved, WebhookTargets
from streamd.process.cures import with_cure
from streamd.streams.subscriptions.webhook_texts import SIGNATURE_HEADER
from streamd.streams.subscriptions.webhook_urls import Address, WebhookUrl, WebhookUrlRejected

if TYPE_CHECKING:
    import httpx

# Of an answer no more is read: it may say that the wake is done, and all else is not looked at.
MAX_ANSWER_BYTES = 64 * 1024
_CONNECT_S = 10.0
_MAX_WHY_CHARACTERS = 200


class DeliveryFailed(Exception):
    """A receiver did not take a webhook, or nobody can tell. The message says why, and has neither
    the URL nor anything that the receiver chose."""


class Poster(Protocol):
    """Posts webhooks."""

    async def post(self, url: str, body: bytes, signature: str) -> bytes:
        """Deliver a body, and return that of the answer, or b"" if it is too large. Raises
        `DeliveryFailed`."""


class WebhookSender:
    """The `Poster` of the real network."""

    def __init__(self, config: SubscriptionsConfig, targets: WebhookTargets) -> None:
        """Raises `ConfigError` for authorities that cannot be read."""
        self._targets = targets
        self._timeout_s = config.delivery_timeout_ms / 1000
        self._tls = None if config.ca is None else _tls(config.ca)

    async def post(self, url: str, body: bytes, signature: str) -> bytes:
        """As `Poster.post`. A status of 2xx says that the body was delivered, whatever follows."""
        answer = _Receipt()
        with trio.move_on_after(self._timeout_s):
            await self._deliver(url, body, signature, answer)
        if answer.status == 0:
            raise DeliveryFailed(f"no answer within {self._timeout_s:g} s")
        if not 200 <= answer.status < 300:
            raise DeliveryFailed(f"the answer has status {answer.status}")
        return answer.body

    async def _deliver(self, url: str, body: bytes, signature: str, answer: _Receipt) -> None:
        """Post to the first address that takes a connection: what was sent to one is not sent to
        the next. Raises `DeliveryFailed`."""
        try:
            parts = self._targets.parse(url)
            addresses = await self._targets.addresses(parts)
        except (WebhookUrlRejected, NameNotResolved) as error:
            raise DeliveryFailed(f"no connection: {error}") from None
        if self._tls is None:
            self._tls = await trio.to_thread.run_sync(ssl.create_default_context)
        headers = {
            "Host": parts.authority,
            "User-Agent": f"streamd/{__version__}",
            "Accept": "application/json",
            # A small body could expand to a huge one.
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            SIGNATURE_HEADER: signature,
        }
        why = ""
        for address in addresses:
            try:
                await self._exchange(parts, address, headers, body, answer)
                return
            except _NotConnected as error:
                why = str(error)
        raise DeliveryFailed(f"no connection: {why}")

    async def _exchange(
        self,
        url: WebhookUrl,
        address: Address,
        headers: dict[str, str],
        body: bytes,
        answer: _Receipt,
    ) -> None:
        """Send the request and note the answer as it comes. Raises `_NotConnected`,
        `DeliveryFailed`."""
        # It takes long to import, so that waits for the first webhook, and the loop not for it.
        await trio.to_thread.run_sync(import_module, "httpx")
        import httpx

        times = httpx.Timeout(self._timeout_s, connect=_CONNECT_S).as_dict()
        extensions = {"timeout": times, "sni_hostname": url.host}
        request = httpx.Request(
            "POST", url.at(address), headers=headers, content=body, extensions=extensions
        )
        assert self._tls is not None, "it was loaded before"
        try:
            async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
                response = await transport.handle_async_request(request)
                answer.status = response.status_code
                answer.body = await _beginning(response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _NotConnected(_in_words(error)) from None
        except Exception as error:  # No answer of a receiver must end the node.
            if answer.status == 0:
                raise DeliveryFailed(f"no answer: {type(error).__name__}") from None


async def _beginning(response: httpx.Response) -> bytes:
    """The body of an answer; b"" if it is larger than any that matters."""
    body = bytearray()
    try:
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > MAX_ANSWER_BYTES:
                return b""
    finally:
        await response.aclose()
    return bytes(body)


class _Receipt:
    """As much of an answer as has arrived; the status is 0 before its head."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""


class _NotConnected(Exception):
    """Nothing was sent."""


def _in_words(error: Exception) -> str:
    """Why the system, or TLS, refused a connection."""
    beneath: BaseException | None = error
    while beneath is not None and not isinstance(beneath, OSError):
        beneath = beneath.__cause__ or beneath.__context__
    if isinstance(beneath, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {beneath.verify_message}"[:_MAX_WHY_CHARACTERS]
    return (str(beneath or error) or type(error).__name__)[:_MAX_WHY_CHARACTERS]


def _tls(authorities: str) -> ssl.SSLContext:
    """Raises `ConfigError`."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"subscriptions.ca: {with_cure(error)}") from None
