"""The identity provider whose JWTs a node takes: its keys, kept up to date.

Keys come from a file, which is looked at every few seconds, or from a URL, which is asked every few
minutes, and when a JWT has a key that is not known: then at most once in `ASK_AGAIN_S`, whatever
strangers send. If keys cannot be fetched, those that were fetched before stay in use: while the
provider is away, the JWTs that it has signed are valid.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NoReturn

import httpx
import structlog
import trio

from streamd import __version__
from streamd.auth.identity import Identity, Undecided
from streamd.auth.jwks import KeySet, KeySetError, parse_keys
from streamd.auth.jwt import JWTRefused, Policy, UnknownKey, verify
from streamd.auth.templates import parse_template
from streamd.config.auth import JwtConfig
from streamd.config.settings import ConfigError
from streamd.http.credentials.tls_files import POLL_INTERVAL_S, Stamp, stamp_of
from streamd.process.cures import with_cure
from streamd.process.metrics import Metrics
from streamd.process.redaction import shown

MAX_KEY_SET_BYTES = 256 * 1024
FETCH_TIMEOUT_S = 10.0
# How soon the provider is asked again: for a key that is not known, and after failures.
ASK_AGAIN_S = 10.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
# Nodes that were started together ask at different times.
_JITTER = 0.1
_HEADERS = {
    "Accept": "application/jwk-set+json, application/json",
    # A small body could expand to a huge one.
    "Accept-Encoding": "identity",
    "User-Agent": f"streamd/{__version__}",
}

log = structlog.get_logger("streamd.auth")
_LOGGER = logging.getLogger("streamd.auth")


class IdentityProvider:
    """A `Verifier` of the provider's JWTs, with the keys that `follow` keeps up to date."""

    def __init__(self, config: JwtConfig, random: Random) -> None:
        """Raises `ConfigError` for files that cannot be used. Nothing is fetched yet."""
        self._config = config
        self._policy = _policy(config)
        self._random = random
        self._keys: KeySet | None = None
        self._updated_s = float("nan")  # When keys were last found, by Trio's clock.
        self._failures = 0  # Since then.
        self._asked_s = float("-inf")
        self._is_asking = False
        self._wanted = trio.Event()
        self._seen: Stamp | None = None
        self._tls: ssl.SSLContext | bool = False
        if config.is_fetched:
            self._tls = _client_tls(config.jwks_ca)
            return
        self._seen = stamp_of(config.jwks)
        try:
            self._keys = self._parse(_read(config.jwks))
        except OSError as error:
            raise ConfigError(f"auth.jwt.jwks: {with_cure(error)}") from None
        except KeySetError as error:
            raise ConfigError(f"auth.jwt.jwks: {config.jwks}: {error}") from None

    def export(self, metrics: Metrics) -> None:
        metrics.gauge(
            "jwks_keys",
            "Number of keys known from the identity provider.",
            lambda: len(self._keys or ()),
        )
        metrics.gauge(
            "jwks_age_seconds",
            "Seconds since the keys of the identity provider were last fetched.",
            lambda: trio.current_time() - self._updated_s,
        )

    def identify(self, token: bytes, now_ms: int) -> Identity | None:
        """Identify the sender, as `Verifier.identify` describes. Raises `Undecided` about a key
        that this node may not know yet."""
        try:
            if self._keys is None:
                raise UnknownKey
            return verify(token, self._keys, self._policy, now_ms)
        except JWTRefused as refused:
            reason = str(refused)
        except UnknownKey:
            self._ask_for_keys()
            reason = "its kid does not match any known key"
        # structlog would make up the event before it is dropped: more work than most refusals.
        if _LOGGER.isEnabledFor(logging.DEBUG):
            log.debug("JWT refused", reason=reason)
        return None

    def _ask_for_keys(self) -> None:
        """Let the provider be asked. Raises `Undecided` unless it has just answered."""
        if not self._config.is_fetched:
            return
        is_due = trio.current_time() >= self._asked_s + ASK_AGAIN_S
        if is_due:
            self._wanted.set()
        if is_due or self._is_asking or self._failures or self._keys is None:
            raise Undecided("this node does not know all keys of the identity provider yet")

    async def follow(self, changed: Callable[[], None]) -> NoReturn:
        """Keep the keys up to date. Calls `changed` when they have changed."""
        while True:
            self._wanted = trio.Event()
            found = await self._fetch() if self._config.is_fetched else self._read_if_changed()
            if found is not None and found != self._keys:
                self._keys = found
                log.info("identity provider's keys have changed", keys=len(found))
                changed()
            with trio.move_on_after(self._pause_s()):
                await self._wanted.wait()

    def _pause_s(self) -> float:
        """How long to wait for an unknown key before the next look."""
        if not self._config.is_fetched:
            return POLL_INTERVAL_S
        pause_s = self._config.jwks_refresh_ms / 1000
        if self._failures:
            doubled_s = _FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10)
            pause_s = min(pause_s, doubled_s, _LONGEST_PAUSE_S)
        return pause_s * self._random.uniform(1 - _JITTER, 1 + _JITTER)

    def _parse(self, text: bytes) -> KeySet:
        """Raises `KeySetError`."""
        found = parse_keys(text, self._policy.algorithms)
        self._updated_s = trio.current_time()
        self._failures = 0
        return found

    def _failed(self, error: Exception) -> None:
        """Log what went wrong, once until it goes well again."""
        self._failures += 1
        if self._failures == 1:
            log.warning(
                "identity provider's keys cannot be read; those known stay in use",
                jwks=shown(self._config.jwks),
                error=f"{type(error).__name__}: {error}"[:200],
            )

    # -- a file -------------------------------------------------------------------------------

    def _read_if_changed(self) -> KeySet | None:
        """Blocks for a read at most, of a file that should be local."""
        seen = stamp_of(self._config.jwks)
        if seen == self._seen and not self._failures:
            self._updated_s = trio.current_time()
            return None
        # Noted before the file is read, so that the next look notices a change in between.
        self._seen = seen
        try:
            return self._parse(_read(self._config.jwks))
        except (OSError, KeySetError) as error:
            self._failed(error)
            return None

    # -- a URL --------------------------------------------------------------------------------

    async def _fetch(self) -> KeySet | None:
        self._asked_s, self._is_asking = trio.current_time(), True
        try:
            with trio.fail_after(FETCH_TIMEOUT_S):
                return self._parse(await self._download())
        except Exception as error:  # No answer of a provider must end the node.
            self._failed(error)
            return None
        finally:
            self._is_asking = False

    async def _download(self) -> bytes:
        """The body of a good answer. Raises `httpx.HTTPError`, `KeySetError`."""
        body = bytearray()
        async with (
            # Redirects are not followed: they would lead to where nobody has configured.
            httpx.AsyncClient(verify=self._tls, headers=_HEADERS, follow_redirects=False) as client,
            client.stream("GET", self._config.jwks, timeout=FETCH_TIMEOUT_S) as answer,
        ):
            if answer.status_code != 200 or "content-encoding" in answer.headers:
                raise KeySetError(
                    f"the answer has status {answer.status_code}, or a Content-Encoding"
                )
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > MAX_KEY_SET_BYTES:
                    raise KeySetError(f"there are more than {MAX_KEY_SET_BYTES} bytes")
        return bytes(body)


def _read(file: str) -> bytes:
    """Raises `OSError`, `KeySetError`."""
    with Path(file).open("rb") as opened:
        text = opened.read(MAX_KEY_SET_BYTES + 1)
    if len(text) > MAX_KEY_SET_BYTES:
        raise KeySetError(f"there are more than {MAX_KEY_SET_BYTES} bytes")
    return text


def _client_tls(authorities: str | None) -> ssl.SSLContext:
    """Raises `ConfigError`."""
    if authorities is None:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"auth.jwt.jwks_ca: {with_cure(error)}") from None


def _policy(config: JwtConfig) -> Policy:
    return Policy(
        config.issuer,
        config.audience,
        frozenset(config.algorithms),
        config.scope_claim,
        config.roles_claim,
        tuple(map(parse_template, config.scopes)),
        {role: tuple(map(parse_template, texts)) for role, texts in config.roles.items()},
    )
