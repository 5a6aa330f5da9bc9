"""Signed URLs: what a URL with the parameter ``signed`` permits to anyone who has it.

A token signs them with an Ed25519 key that is derived from the token's secret, so its holder needs
no server to sign, and the state keeps the public key only (RFC 8032). The parameter's value is::

    1.<token id>.<expiry>.<methods>.<reach>.<signature>

`expiry` is in seconds since the epoch, `methods` are joined by ``-`` in the order of `METHODS`, and
`reach` is ``x`` for the URL's own path, or the length in bytes of the decoded prefix that all paths
must have. What is signed besides, host and path, the request says itself. All characters of a value
are unreserved in URLs (RFC 3986 section 2.3), and none but one spelling is accepted.

The libraries of `cryptography` are imported where they are used: a node on which nobody signs
starts without them.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from hmac import digest as hmac_digest
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from streamd.auth.tokens import parse_token, shown_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PARAMETER = b"signed"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
MAX_LIFE_S = 7 * 86_400
PUBLIC_KEY_BYTES = 32

_VALUE = re.compile(
    rb"1\.([0-7][0-9a-f]{15})\.([1-9][0-9]{0,10})\.([A-Z-]{3,40})\.(x|[1-9][0-9]{0,3})"
    rb"\.([A-Za-z0-9_-]{86})"
)
# The longest name in DNS has 253 characters (RFC 1035 section 2.3.4), and a dot may follow.
_HOST = re.compile(rb"(?:[a-z0-9._-]{1,254}|\[[0-9a-f:.]{2,45}\])(?::[1-9][0-9]{0,4})?")
_DEFAULT_PORT = re.compile(rb":(?:80|443)?$")
_URL = re.compile(r"(?=[!-~]+\Z)https?://([^/?#@]+)(/[^?#]*)(?:\?([^#]*))?")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})|%2[Ff]")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f\\]")
# Of the key and of what it signs; another version of either gets another label.
_LABEL = b"streamd signed URL 1"


class Grant(NamedTuple):
    """What a signature permits: requests with one of these methods, to this host (`same_host`), for
    a decoded path (`decoded_path`), or with `is_prefix` for it and all that lie below it."""

    token_id: int
    expires_s: int
    methods: tuple[str, ...]
    host: bytes
    path: bytes
    is_prefix: bool


class SignedValue(NamedTuple):
    """The parameter's value, parsed and not verified. `prefix_bytes` is None for one path only."""

    token_id: int
    expires_s: int
    methods: tuple[str, ...]
    prefix_bytes: int | None
    signature: bytes

    def permits(self, method: str) -> bool:
        """Whether the method is among the signed ones; GET permits HEAD."""
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)

    def grant(self, host: bytes, path: bytes) -> Grant | None:
        """What must have been signed if a request to `host` for the decoded `path` is permitted;
        None if nothing with this reach permits it."""
        length = self.prefix_bytes
        signed = path if length is None else path[:length]
        grant = Grant(self.token_id, self.expires_s, self.methods, host, signed, length is not None)
        return grant if length in (None, len(signed)) and covers(grant, path) else None


def covers(grant: Grant, path: bytes) -> bool:
    """Whether a decoded path is the one that was signed, or lies below it by whole segments."""
    if not grant.is_prefix or path == grant.path:
        return path == grant.path
    return path.startswith(grant.path if grant.path.endswith(b"/") else grant.path + b"/")


def methods_in_order(methods: Iterable[str]) -> tuple[str, ...] | None:
    """The methods in the order that is signed; None if there is none, or one that cannot be
    signed."""
    given = set(methods)
    return tuple(one for one in METHODS if one in given) if given and given <= {*METHODS} else None


def same_host(host: bytes) -> bytes | None:
    """A Host header's value in the one spelling that is signed: in lower case, and without the
    ports that clients leave out (80 and 443). None if it is not a host."""
    host = _DEFAULT_PORT.sub(b"", host.lower())
    return host if _HOST.fullmatch(host) else None


def decoded_path(raw: bytes) -> bytes | None:
    """A raw path without its escapes; None for one that names nothing, or not clearly."""
    if not raw.startswith(b"/") or _BAD_ESCAPE.search(raw):
        return None
    path = unquote_to_bytes(raw) if b"%" in raw else raw
    return None if _CONTROL.search(path) or b".." in path.split(b"/") else path


def host_and_path(url: str) -> tuple[bytes, bytes]:
    """What is signed of a whole URL. Raises `ValueError`, which says what is wrong with it."""
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError("not a URL of ASCII characters, http://HOST/PATH, without a fragment")
    host, path = same_host(match[1].encode()), decoded_path(match[2].encode())
    if host is None:
        raise ValueError("its host is not HOST or HOST:PORT")
    if path is None:
        raise ValueError("its path contains an invalid escape, an escaped slash or a .. segment")
    if value_in((match[3] or "").encode()) is not None:
        raise ValueError("it is already signed")
    return host, path


def with_value(url: str, value: str) -> str:
    """The URL with the value of a signature."""
    return f"{url}{'&' if '?' in url else '?'}{PARAMETER.decode()}={value}"


def parse(raw: bytes) -> SignedValue | None:
    """The parameter's value; None for bytes that `sign` cannot have made."""
    match = _VALUE.fullmatch(raw)
    if match is None:
        return None
    methods = tuple(match[3].decode().split("-"))
    signature = urlsafe_b64decode(match[5] + b"==")
    if methods != methods_in_order(methods) or _encoded(signature) != match[5]:
        return None
    length = None if match[4] == b"x" else int(match[4])
    return SignedValue(int(match[1], 16), int(match[2]), methods, length, signature)


def value_in(query: bytes) -> bytes | None:
    """The parameter's value in a raw query. Repeated ones come joined by ``&``, which no value has;
    an escaped name is another parameter."""
    if PARAMETER not in query:
        return None
    start = PARAMETER + b"="
    values = [pair[len(start) :] for pair in query.split(b"&") if pair.startswith(start)]
    return b"&".join(values) if values else None


# -- signatures ------------------------------------------------------------------------------------


def public_key_of(token: bytes) -> bytes:
    """The key with which a token's signatures are verified."""
    return _private_key(token).public_key().public_bytes_raw()


def sign(token: bytes, grant: Grant) -> str:
    """The parameter's value for a grant of this token."""
    assert grant.methods == methods_in_order(grant.methods), "methods have one order"
    signature = _private_key(token).sign(signed_bytes(grant))
    reach = str(len(grant.path)) if grant.is_prefix else "x"
    fields = "1", shown_id(grant.token_id), str(grant.expires_s), "-".join(grant.methods), reach
    return ".".join((*fields, _encoded(signature).decode()))


def signed_url(
    token: bytes, url: str, methods: Iterable[str], expires_s: int, *, prefix: bool = False
) -> str:
    """The URL, signed with a token until a time. Raises `ValueError`, which says what is wrong."""
    presented, in_order = parse_token(token), methods_in_order(methods)
    if presented is None:
        raise ValueError("only a token of streamd's own (sd_…) signs URLs")
    if in_order is None:
        raise ValueError(f"the methods must be among {', '.join(METHODS)}")
    host, path = host_and_path(url)
    grant = Grant(presented.token_id, expires_s, in_order, host, path, prefix)
    return with_value(url, sign(token, grant))


def is_signed(public_key: bytes, grant: Grant, signature: bytes) -> bool:
    """Whether the token with that key has signed the grant. Takes some 90 µs."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(public_key) != PUBLIC_KEY_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed_bytes(grant))
    except (InvalidSignature, ValueError):
        return False
    return True


def signed_bytes(grant: Grant) -> bytes:
    """What is signed: different for different grants, because no field but the path, which comes
    last, can have a line break."""
    return b"\n".join(
        (
            _LABEL,
            shown_id(grant.token_id).encode(),
            b"%d" % grant.expires_s,
            "-".join(grant.methods).encode(),
            grant.host,
            b"prefix" if grant.is_prefix else b"path",
            grant.path,
        )
    )


def _private_key(token: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    # The secret's 160 random bits make this a key derivation without a salt (RFC 5869 section 3.1).
    return Ed25519PrivateKey.from_private_bytes(hmac_digest(token, _LABEL, "sha256"))


def _encoded(signature: bytes) -> bytes:
    return urlsafe_b64encode(signature).rstrip(b"=")
