"""The parts of the section ``[auth]`` about identities for which others vouch, and what can be
wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, get_args

import msgspec

from streamd.auth.certificates import NameKind, name_fault
from streamd.auth.scopes import ScopeError, parse_scopes
from streamd.auth.templates import parse_template
from streamd.process.redaction import shown

# Only those for which a verifier needs no secret: with a public key as the secret of an HMAC
# anyone could sign, and with "none" nobody has to.
Algorithm = Literal[
    "EdDSA", "ES256", "ES384", "ES512",
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
]  # fmt: skip
DEFAULT_ALGORITHMS: tuple[Algorithm, ...] = ("EdDSA", "ES256", "RS256")

# Keys that come over an open network are those of anyone on the way.
_URL = re.compile(
    r"https://[^\s/?#@]+(/[^\s#]*)?"
    r"|http://(localhost|127\.[0-9]+\.[0-9]+\.[0-9]+|\[::1\])(:[0-9]+)?(/[^\s#]*)?"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class JwtConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The section ``[auth.jwt]``: JWTs of an identity provider.

    A JWT must have exactly this `issuer`, and `audience` among its audiences. `jwks` is a file or
    URL with the provider's public keys; a URL is asked every `jwks_refresh_ms`, and its certificate
    must be of the authorities in the file `jwks_ca`, if that is given.

    `scope_claim` holds scopes. `scopes` are those of every JWT, and `roles` those for each value of
    `roles_claim`; both are templates, in which ``{sub}`` stands for a claim.
    """

    issuer: str = ""
    audience: str = ""
    jwks: str = ""
    jwks_ca: str | None = None
    jwks_refresh_ms: Annotated[int, msgspec.Meta(ge=1)] = 300_000
    algorithms: list[Algorithm] = msgspec.field(default_factory=lambda: [*DEFAULT_ALGORITHMS])
    scope_claim: str = "scope"
    roles_claim: str = "roles"
    scopes: list[str] = []
    roles: dict[str, list[str]] = {}

    @property
    def is_fetched(self) -> bool:
        """Whether the keys come from a URL."""
        return _SCHEME.match(self.jwks) is not None


class CertificateConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An entry of ``[[auth.certificates]]``: the scopes of client certificates with one name."""

    scopes: list[str]
    subject: str | None = None
    common_name: str | None = None
    dns: str | None = None
    uri: str | None = None
    email: str | None = None

    def names(self) -> Iterator[tuple[NameKind, str]]:
        """The names that are given: in an entry without a fault one."""
        kinds: tuple[NameKind, ...] = get_args(NameKind)
        for kind in kinds:
            if (name := getattr(self, kind)) is not None:
                yield kind, name


def certificate_fault(entry: CertificateConfig) -> str | None:
    """What is wrong with an entry; None if nothing is."""
    names = list(entry.names())
    if len(names) != 1:
        return f"an entry needs exactly one of {', '.join(get_args(NameKind))}"
    kind, name = names[0]
    if (fault := name_fault(kind, name)) is not None:
        return f"{kind} {name!r}: {fault}"
    try:
        parse_scopes(entry.scopes)
    except ScopeError as error:
        return f"{kind} {name!r}: scopes: {error}"
    return None


def jwt_fault(jwt: JwtConfig) -> str | None:
    """What is wrong with a configuration, after the name of the section; None if nothing is."""
    for name in ("issuer", "audience", "jwks", "algorithms"):
        if not getattr(jwt, name):
            return f"{name}: it is missing"
    if jwt.is_fetched and _URL.fullmatch(jwt.jwks) is None:
        return (
            f"jwks: {shown(jwt.jwks)!r} is neither a file nor https://…; http://… is for the "
            "provider on this machine only"
        )
    return _template_fault("scopes", jwt.scopes) or next(
        filter(None, (_template_fault(f"roles.{role}", one) for role, one in jwt.roles.items())),
        None,
    )


def _template_fault(name: str, texts: Iterable[str]) -> str | None:
    for text in texts:
        try:
            parse_template(text)
        except ScopeError as error:
            return f"{name}: {error}"
    return None
