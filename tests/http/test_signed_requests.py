"""The authority compared with a model: any request with any signed URL, made or tampered with."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple, cast
from urllib.parse import unquote_to_bytes

from hypothesis import event, given, settings
from hypothesis import strategies as st

from streamd.auth import signed_urls, tokens
from streamd.auth.signed_urls import METHODS, Grant
from streamd.config.settings import AuthConfig
from streamd.http.access.authority import Authority
from streamd.http.protocol.connections import Channel
from streamd.http.protocol.messages import Request
from streamd.http.router import find
from streamd.protocol.problems import ProblemError
from streamd.streams.token_commands import CreateToken, RotateToken
from tests.streams.driver import Driver

PRESENT = tokens.mint(2, b"here" * 5).encode()
FORMER = tokens.mint(2, b"form" * 5).encode()
OTHER = tokens.mint(2, b"othr" * 5).encode()
NOW_S = 1_700_000_000
OVERLAP_S = 50
SCOPES = ["read:agents/*", "append:agents/run-1", "list:agents/"]
WEEK_S = 7 * 86_400


class Asked(NamedTuple):
    """A request with a signed URL; `signer` is the token that signed `grant`."""

    signer: bytes
    grant: Grant
    method: str
    host: bytes
    path: bytes
    now_s: int


raw_paths = st.sampled_from(
    [b"/agents/run-1", b"/agents/run%2D1", b"/agents/run-10", b"/agents/run-1/bootstrap",
     b"/agents", b"/agents/streams", b"/agents/", b"/v1/stream/agents/run-1", b"/other/run-1",
     b"/v1/stream/agents", b"/metrics", b"/auth/tokens", b"/agents/run-1/snapshot"]
)  # fmt: skip
hosts = st.sampled_from([b"h", b"H", b"h:80", b"h:443", b"h:4437", b"i", b"h.i", b""])
grants = st.builds(
    Grant,
    st.sampled_from([2, 3]),
    st.integers(NOW_S - 5, NOW_S + 5) | st.sampled_from([NOW_S + WEEK_S, NOW_S + 8 * 86_400]),
    st.sets(st.sampled_from(METHODS), min_size=1).map(
        lambda given: signed_urls.methods_in_order(given) or ()
    ),
    st.sampled_from([b"h", b"h:4437", b"i"]),
    raw_paths.map(unquote_to_bytes),
    st.booleans(),
)
wild = st.builds(
    Asked,
    st.sampled_from([PRESENT, PRESENT, FORMER, OTHER]),
    grants,
    st.sampled_from([*METHODS, "PATCH"]),
    hosts,
    raw_paths,
    st.integers(NOW_S - 3, NOW_S + 3) | st.just(NOW_S + OVERLAP_S),
)


@st.composite
def nearly_good(draw: st.DrawFn) -> Asked:
    """A request as it was signed, but for up to two things."""
    raw = draw(raw_paths)
    methods = draw(grants).methods
    grant = Grant(2, NOW_S + 5, methods, b"h", unquote_to_bytes(raw), draw(st.booleans()))
    good = Asked(PRESENT, grant, draw(st.sampled_from(methods)), b"h", raw, NOW_S)
    other = draw(wild)
    fields = draw(st.sets(st.sampled_from(Asked._fields), max_size=2))
    return good._replace(**{field: getattr(other, field) for field in fields})


asked = nearly_good() | wild


def authority(now_ms: list[int]) -> Authority:
    """Over a state with a token that was rotated."""
    driver = Driver()
    driver.now_ms = NOW_S * 1000
    key, digest = signed_urls.public_key_of(FORMER), tokens.digest_of(FORMER)
    driver.do(CreateToken(2, "ci", digest, SCOPES, None, key))
    key, digest = signed_urls.public_key_of(PRESENT), tokens.digest_of(PRESENT)
    driver.do(RotateToken(2, digest, OVERLAP_S * 1000, None, key))
    return Authority(
        driver.state, AuthConfig(mode="required"), now_ms=lambda: now_ms[0], is_ready=lambda: True
    )


def verdict(request: Asked) -> str:
    """What must come of a request, "" if it is admitted: written without the code under test."""
    grant = request.grant
    same = {b"H": b"h", b"h:80": b"h", b"h:443": b"h"}.get(request.host, request.host)
    path = request.path.replace(b"%2D", b"-")
    below = grant.path if grant.path.endswith(b"/") else grant.path + b"/"
    reached = path == grant.path or (grant.is_prefix and path.startswith(below))
    permitted = {*grant.methods, *(["HEAD"] if "GET" in grant.methods else [])}
    signers = {PRESENT, FORMER} if request.now_s < NOW_S + OVERLAP_S else {PRESENT}
    if not (
        request.method in permitted
        and same == grant.host
        and reached
        and request.now_s < grant.expires_s <= request.now_s + WEEK_S + 3600
        and grant.token_id == 2
        and request.signer in signers
        and not path.startswith((b"/metrics", b"/auth"))
    ):
        return "INVALID_SIGNED_URL"
    target = {b"/v1/stream/agents/run-1": "agents/run-1", b"/v1/stream/agents": "_default/agents"}
    name = target.get(path, path.decode()[1:])
    if name in ("agents", "agents/streams"):
        may = request.method in ("GET", "HEAD")
    elif request.method in ("GET", "HEAD"):
        may = name.startswith("agents/")
    else:
        may = request.method == "POST" and name == "agents/run-1"
    return "" if may else "INSUFFICIENT_SCOPE"


ADDRESSES = count()
NOW_MS = [0]
JUDGE = authority(NOW_MS)


def outcome(request: Asked, value: bytes) -> str:
    NOW_MS[0] = request.now_s * 1000
    headers = {b"host": request.host} if request.host else {}
    query, nowhere = b"signed=" + value, cast("Channel", None)
    sent = Request(request.method, request.path, query, headers, b"", nowhere)
    # Wrong signatures from one address are cut off.
    sent.client = str(next(ADDRESSES))
    resource, target = find(request.path)
    try:
        JUDGE.admit(
            sent,
            lambda: resource.scopes(request.method, target, headers),
            takes_signed=not resource.is_operation,
        )
    except ProblemError as error:
        return error.problem.code
    return ""


def is_answered(request: Asked) -> bool:
    """Whether a request gets to the authority: the path names something that has the method."""
    resource = find(request.path).resource
    return resource.is_operation or request.method in resource.routes


@settings(max_examples=400)
@given(asked)
async def test_a_request_is_admitted_exactly_as_it_was_signed(request: Asked) -> None:
    if not is_answered(request):
        return
    value = signed_urls.sign(request.signer, request.grant).encode()
    expected = verdict(request)
    event(expected or "admitted")
    for _ in range(2):  # Once it is known, too.
        assert outcome(request, value) == expected


@settings(max_examples=400)
@given(asked, st.integers(0, 200), st.integers(0, 255))
async def test_no_tampered_value_is_admitted(request: Asked, at: int, byte: int) -> None:
    value = bytearray(signed_urls.sign(request.signer, request.grant).encode())
    at %= len(value)
    if value[at] == byte or not is_answered(request):
        return
    value[at] = byte
    assert outcome(request, bytes(value)) == "INVALID_SIGNED_URL"
