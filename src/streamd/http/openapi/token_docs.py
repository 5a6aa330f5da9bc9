"""Tokens. All but the signing of a URL need ``admin:*``, also where nothing else needs a token."""

from __future__ import annotations

from streamd.http.openapi.elements import OUTSIDE, Json, Operation, Reply, json_content, ref

_ASKED = ("503 UNAVAILABLE", *OUTSIDE)
_CHANGED = ("400 INVALID_REQUEST", "503 UNAVAILABLE", *OUTSIDE, "503 OUTCOME_UNKNOWN")
_TOKEN = json_content(ref("schemas", "TokenBody"))
_WITH_SECRET = json_content(ref("schemas", "NewTokenBody"))
_NOT_FOUND = ("404 TOKEN_NOT_FOUND",)
_ONCE = "The secret is in this answer only."


def _body(schema: str, *, required: bool) -> Json:
    return {"required": required, "content": json_content(ref("schemas", schema))}


LIST = Operation(
    "listTokens",
    "All tokens, without their secrets",
    {
        200: Reply(
            "They are.", ("Vary?", "Content-Encoding?"), json_content(ref("schemas", "TokensBody"))
        )
    },
    (*_ASKED, "500 RESPONSE_TOO_LARGE"),
    ("Accept-Encoding",),
)
CREATE = Operation(
    "createToken",
    "Create a token",
    {201: Reply(_ONCE, ("Cache-Control",), _WITH_SECRET)},
    (*_CHANGED, "409 TOKEN_EXISTS", "409 TOO_MANY_TOKENS"),
    body=_body("NewToken", required=True),
)
SHOW = Operation(
    "token",
    "One token, by its id or name",
    {200: Reply("It is.", ("Vary?", "Content-Encoding?"), _TOKEN)},
    (*_ASKED, *_NOT_FOUND),
    ("Accept-Encoding",),
)
REVOKE = Operation(
    "revokeToken",
    "Revoke a token, by its id or name",
    {204: Reply("No node takes it any more.")},
    (*_ASKED, *_NOT_FOUND, "503 OUTCOME_UNKNOWN"),
)
ROTATE = Operation(
    "rotateToken",
    "Give a token another secret; the one before it stays valid for a while",
    {200: Reply(_ONCE, ("Cache-Control",), _WITH_SECRET)},
    (*_CHANGED, *_NOT_FOUND),
    body=_body("Rotation", required=False),
)
SIGN = Operation(
    "signUrl",
    "Sign a URL with the token that the request is sent with",
    {
        200: Reply(
            "Who has the URL may use it as the token may.",
            ("Cache-Control",),
            json_content(ref("schemas", "SignedUrl")),
        )
    },
    ("400 INVALID_REQUEST", "409 CANNOT_SIGN", "503 UNAVAILABLE"),
    body=_body("UrlToSign", required=True),
    description="Any token may ask, for what its scopes permit.",
)
