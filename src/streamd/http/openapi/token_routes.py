"""Routes for tokens. Each but ``/auth/sign`` needs ``admin:*``, also where nothing else needs a
token."""

from __future__ import annotations

from streamd.http.openapi.elements import Json, Operation, Path, Reply, json_content, ref
from streamd.http.openapi.errors import OUTSIDE

_ASKED = ("503 UNAVAILABLE", *OUTSIDE)
_CHANGED = ("400 INVALID_REQUEST", "503 UNAVAILABLE", *OUTSIDE, "503 OUTCOME_UNKNOWN")
_TOKEN = json_content(ref("schemas", "TokenBody"))
_WITH_SECRET = json_content(ref("schemas", "NewTokenBody"))
_NOT_FOUND = ("404 TOKEN_NOT_FOUND",)
_ONCE = "The secret is in this answer only."


def _body(schema: str, *, required: bool) -> Json:
    return {"required": required, "content": json_content(ref("schemas", schema))}


def _path(
    template: str, operations: dict[str, Operation], parameters: tuple[str, ...] = ()
) -> Path:
    return Path(template, "node", operations, parameters, guarded=True)


_LIST = Operation(
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
_SHOW = Operation(
    "token",
    "One token, by its id or name",
    {200: Reply("It is.", ("Vary?", "Content-Encoding?"), _TOKEN)},
    (*_ASKED, *_NOT_FOUND),
    ("Accept-Encoding",),
)

PATHS = (
    _path(
        "/auth/tokens",
        {
            "GET": _LIST,
            "HEAD": _LIST.head(),
            "POST": Operation(
                "createToken",
                "Create a token",
                {201: Reply(_ONCE, ("Cache-Control",), _WITH_SECRET)},
                (*_CHANGED, "409 TOKEN_EXISTS", "409 TOO_MANY_TOKENS"),
                body=_body("NewToken", required=True),
            ),
        },
    ),
    _path(
        "/auth/tokens/{token}",
        {
            "GET": _SHOW,
            "HEAD": _SHOW.head(),
            "DELETE": Operation(
                "revokeToken",
                "Revoke a token, by its id or name",
                {204: Reply("No node takes it any more.")},
                (*_ASKED, *_NOT_FOUND, "503 OUTCOME_UNKNOWN"),
            ),
        },
        ("token",),
    ),
    _path(
        "/auth/tokens/{token}/rotate",
        {
            "POST": Operation(
                "rotateToken",
                "Give a token another secret; the one before it stays valid for a while",
                {200: Reply(_ONCE, ("Cache-Control",), _WITH_SECRET)},
                (*_CHANGED, *_NOT_FOUND),
                body=_body("Rotation", required=False),
            )
        },
        ("token",),
    ),
    _path(
        "/auth/sign",
        {
            "POST": Operation(
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
        },
    ),
)
