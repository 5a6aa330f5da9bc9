"""Decides who may do what: the only place, for every protocol, server and node.

A request is judged by its head: before its body is received, and before anything is looked up that
it names. So a refusal is the same whether or not a stream exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from streamd.auth import identity as identities
from streamd.auth import signed_urls, tokens
from streamd.auth.certificates import Certificate, ListedCertificates
from streamd.auth.identity import Identity, SignedIdentity, Undecided, Verifier
from streamd.auth.scopes import ScopeError, Scopes, parse_scope
from streamd.config.settings import AuthConfig
from streamd.group.proposals import Unavailable
from streamd.http.access.needs import Need
from streamd.http.access.signatures import Signatures
from streamd.http.protocol.messages import Request
from streamd.protocol.headers import STREAM_CLOSED, STREAM_FORKED_FROM
from streamd.protocol.problems import Problem, ProblemError
from streamd.streams.state import State
from streamd.streams.tokens import Token

# Of what is remembered of recent requests.
MAX_KNOWN = 4096
_WATCH_S = 1.0

_AUTHORIZATION, _HOST = b"authorization", b"host"
# The only headers at which `needs` looks.
_CLOSED, _FORKED = STREAM_CLOSED.key, STREAM_FORKED_FROM.key

# Of the clocks of who signs and of the log.
_CLOCK_SKEW_S = 3600
_MAX_LIFE_MS = (signed_urls.MAX_LIFE_S + _CLOCK_SKEW_S) * 1000

# What a request proves its sender with: an Authorization header, the value of a signed URL and the
# host that it was sent to, or a certificate that TLS has verified.
Credential = bytes | tuple[bytes, bytes] | Certificate | None
K = TypeVar("K")
V = TypeVar("V")


class Authority:
    """Finds the identity that a request's credentials stand for, and judges whether it may do what
    is asked.

    `roots` are identities of the node itself, `jwts` verifies JWTs, and `listed` are the client
    certificates that permit something. `now_ms` is log time; `is_ready` says whether the state is
    as new as it can be. Of a certificate and an Authorization header the header decides.

    `caching` says which caches may keep what was read (protocol section 8.1).
    """

    def __init__(
        self,
        state: State,
        config: AuthConfig,
        *,
        now_ms: Callable[[], int],
        is_ready: Callable[[], bool],
        roots: Sequence[Identity] = (),
        jwts: Verifier | None = None,
        listed: ListedCertificates | None = None,
    ) -> None:
        self.is_required = config.mode == "required"
        self.caching = b"private" if self.is_required else b"public"
        self._state = state
        self._now_ms = now_ms
        self._is_ready = is_ready
        self._roots = roots
        self._jwts = jwts
        self._listed = listed
        self._version: object = None
        # Identities by their Authorization header, so that a header is parsed, hashed and compared
        # once, or by their certificate; those admitted, also by method and path; and compiled
        # scopes by their token's id.
        self._known: dict[bytes | Certificate, Identity] = {}
        self._admitted: dict[tuple[Credential, str, bytes], Identity] = {}
        self._compiled: dict[int, tuple[tuple[str, ...], Scopes]] = {}
        self._signatures = Signatures()

    @property
    def knows_nobody(self) -> bool:
        """Whether requests need a token and, as far as this node knows, there is none."""
        others = self._roots or self._jwts is not None or self._listed is not None
        return self.is_required and not others and not len(self._state.tokens)

    def admit(
        self,
        request: Request,
        needs_of: Callable[[], Sequence[Need]],
        *,
        takes_signed: bool = True,
    ) -> Identity:
        """The sender of a request that needs all these scopes, which are asked for only if the
        sender is known. Unless it `takes_signed`, a signed URL is not for this path.

        Raises `ProblemError` if the request must be refused, and `Unavailable` if this node cannot
        tell yet.
        """
        headers = request.headers
        credential: Credential = headers.get(_AUTHORIZATION)
        if credential is None or signed_urls.PARAMETER in request.query:
            credential = _credential(request)
            if isinstance(credential, tuple) and not takes_signed:
                raise Problem.INVALID_SIGNED_URL.error()
        if self._version is not self._state.tokens.version:
            self.forget()
        key = credential, request.method, request.path
        identity = self._admitted.get(key)
        if identity is not None and _CLOSED not in headers and _FORKED not in headers:
            if identity.ends_ms is None or identity.ends_ms > self._now_ms():
                return identity
            raise _ended(identity)
        # Also if it is refused: refusals are charged to their sender.
        request.identity = identity = self._identify(credential, request)
        for need in needs_of():
            if not identity.scopes.permit(need.verb, need.target):
                raise Problem.INSUFFICIENT_SCOPE.error(
                    f"the token has no scope {need.verb} for this"
                )
        if _CLOSED not in headers and _FORKED not in headers:
            _keep(self._admitted, key, identity)
        return identity

    def forget(self) -> None:
        """Judge everybody again: some token has changed, or a key of JWTs."""
        self._known.clear()
        self._admitted.clear()
        self._version = self._state.tokens.version

    def _identify(self, credential: Credential, request: Request) -> Identity:
        if credential is None:
            raise Problem.AUTHENTICATION_REQUIRED.error()
        if isinstance(credential, tuple):
            return self._look_up_signed(*credential, request)
        if self._version is not self._state.tokens.version:
            self.forget()
        identity = self._known.get(credential)
        if identity is None:
            identity = self._look_up(credential)
            _keep(self._known, credential, identity)
        if identity.has_ended(self._now_ms()):
            raise Problem.INVALID_TOKEN.error()
        return identity

    def _look_up(self, credential: bytes | Certificate) -> Identity:
        if isinstance(credential, Certificate):
            found = None if self._listed is None else self._listed.identify(credential)
            if found is None:
                raise Problem.AUTHENTICATION_REQUIRED.error()
            return found
        raw = tokens.bearer(credential)
        presented = None if raw is None else tokens.parse_token(raw)
        if presented is None:
            return self._verify(raw)
        for root in self._roots:
            if tokens.is_same_digest(root.digest, presented.digest):
                return root
        token = self._state.tokens.get(presented.token_id)
        ends_ms = 0 if token is None else token.ends_ms(presented.digest)
        if token is None or ends_ms == 0:
            raise self._unknown(Problem.INVALID_TOKEN)
        return Identity(
            token.name,
            self._scopes(presented.token_id, token),
            credential=identities.token_credential(presented.token_id),
            ends_ms=ends_ms,
        )

    def _look_up_signed(self, raw: bytes, host: bytes, request: Request) -> SignedIdentity:
        """The sender of a request with a signed URL, for streams and buckets only. What costs
        nothing is checked first, the signature last."""
        value = signed_urls.parse(raw)
        same_host = signed_urls.same_host(host)
        path = signed_urls.decoded_path(request.path)
        if value is None or same_host is None or path is None or not value.permits(request.method):
            raise Problem.INVALID_SIGNED_URL.error()
        grant = value.grant(same_host, path)
        expires_ms = value.expires_s * 1000
        now_ms = self._now_ms()
        if grant is None or not now_ms < expires_ms <= now_ms + _MAX_LIFE_MS:
            raise Problem.INVALID_SIGNED_URL.error()
        token = self._state.tokens.get(value.token_id)
        if token is None:
            raise self._unknown(Problem.INVALID_SIGNED_URL)
        if not token.public_key:
            raise self._unknown(
                Problem.INVALID_SIGNED_URL,
                "the signed URL is not valid: an earlier release made its token: rotate it",
            )
        key = self._signatures.key_of(grant, value.signature, token, request.client)
        ends_ms = 0 if key is None else _signed_ends_ms(token, key, expires_ms)
        if key is None or ends_ms <= now_ms:
            raise self._unknown(Problem.INVALID_SIGNED_URL)
        if _FORKED in request.headers:
            raise Problem.INSUFFICIENT_SCOPE.error(
                "a signed URL makes no forks: it does not name their source"
            )
        return SignedIdentity(
            token.name,
            self._scopes(value.token_id, token),
            ends_ms=ends_ms,
            expires_ms=expires_ms,
            token_id=value.token_id,
            public_key=key,
        )

    def _unknown(self, invalid: Problem, detail: str = "") -> Exception:
        """The refusal of a credential that this node does not know, unless another may."""
        if self._is_ready():
            return invalid.error(detail)
        return Unavailable("this node does not know all tokens yet")

    def _scopes(self, token_id: int, token: Token) -> Scopes:
        known = self._compiled.get(token_id)
        if known is None or known[0] is not token.scopes:
            known = token.scopes, compiled(token.scopes)
            _keep(self._compiled, token_id, known)
        return known[1]

    def seen(self, request: Request) -> tuple[str | None, str | None]:
        """The name of a request's sender and the credential, for records, admitted or not. Without
        a valid credential there is no name, and the id of a token is what the sender claims."""
        authorization = request.headers.get(_AUTHORIZATION, b"")
        signed = signed_urls.value_in(request.query)
        certificate = None if authorization or signed else request.connection.certificate
        identity = request.identity or self._known.get(certificate or authorization)
        if identity is not None and not identity.has_ended(self._now_ms()):
            return identity.name, identity.credential
        if certificate is not None:
            return None, certificate.credential
        raw = tokens.bearer(authorization)
        presented = None if raw is None else tokens.parse_token(raw)
        if presented is not None:
            return None, identities.token_credential(presented.token_id)
        value = signed_urls.parse(signed or b"")
        return None, None if value is None else identities.signed_credential(value.token_id)

    def _verify(self, raw: bytes | None) -> Identity:
        """The identity for which others vouch, in what is not a token of this server's form."""
        if raw is None or self._jwts is None:
            raise Problem.INVALID_TOKEN.error()
        try:
            found = self._jwts.identify(raw, self._now_ms())
        except Undecided as error:
            raise Unavailable(str(error)) from None
        if found is None:
            raise Problem.INVALID_TOKEN.error()
        return found

    def admit_again(self, request: Request) -> None:
        """Raises as `admit` if the credentials with which a request was admitted no longer hold."""
        self._ends_ms(request)

    def ends_s(self, request: Request) -> float:
        """When a response must end at the latest, by Trio's clock, as far as is known: a change of
        tokens may bring the end nearer. It is in the past if the credentials no longer hold."""
        try:
            ends_ms = self._ends_ms(request)
        except (ProblemError, Unavailable):
            return float("-inf")
        if ends_ms is None:
            return float("inf")
        # One more: both clocks' milliseconds have begun already.
        return trio.current_time() + (ends_ms - self._now_ms() + 1) / 1000

    def _ends_ms(self, request: Request) -> int | None:
        """When the credentials of an admitted request end, None for never. Raises as `admit`."""
        identity = request.identity
        if identity is None:
            return None
        if not isinstance(identity, SignedIdentity):
            return self._identify(_credential(request), request).ends_ms
        # Its signature is as good as ever.
        token = self._state.tokens.get(identity.token_id)
        ends_ms = 0
        if token is not None:
            ends_ms = _signed_ends_ms(token, identity.public_key, identity.expires_ms)
        if ends_ms <= self._now_ms():
            raise self._unknown(Problem.INVALID_SIGNED_URL)
        return ends_ms

    def tokens_version(self) -> object:
        """Another object after each change of tokens that this node has applied."""
        return self._state.tokens.version

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` soon after tokens have changed: live readers must look again."""
        version = self.tokens_version()
        while True:
            await trio.sleep(_WATCH_S)
            if self.tokens_version() is not version:
                version = self.tokens_version()
                changed()


def _credential(request: Request) -> Credential:
    """What the sender of a request proves itself with: a certificate if nothing else. Raises
    `ProblemError` if it is two other things (RFC 6750 section 2)."""
    authorization = request.headers.get(_AUTHORIZATION)
    signed = signed_urls.value_in(request.query)
    if signed is None:
        return request.connection.certificate if authorization is None else authorization
    if authorization is not None:
        raise Problem.AMBIGUOUS_CREDENTIALS.error()
    return signed, request.headers.get(_HOST, b"")


def _signed_ends_ms(token: Token, public_key: bytes, expires_ms: int) -> int:
    """When a signed URL ends that was signed by that key: itself, or with its token."""
    ends_ms = token.key_ends_ms(public_key)
    return expires_ms if ends_ms is None else min(expires_ms, ends_ms)


def _keep(cache: dict[K, V], key: K, value: V) -> None:
    if len(cache) >= MAX_KNOWN:
        cache.clear()
    cache[key] = value


def compiled(texts: Sequence[str]) -> Scopes:
    """What a token permits. A scope that this release does not know permits nothing."""
    known = []
    for text in texts:
        try:
            known.append(parse_scope(text))
        except ScopeError:
            continue
    return Scopes(known)


def _ended(identity: Identity) -> ProblemError:
    is_signed = isinstance(identity, SignedIdentity)
    return (Problem.INVALID_SIGNED_URL if is_signed else Problem.INVALID_TOKEN).error()
