"""The API as an OpenAPI 3.1 document, assembled from small tables and the code's own structs.

`parameters` lists parameters and headers, `schemas` the bodies, taken from the structs that are
encoded. The `*_docs` modules describe what the routes of the table (`http.routes`) do, naming
errors and parameters by their keys; `elements` takes every error from the table of problems, and
turns routes into the form of the document.

tests/http/test_openapi.py keeps it true: every problem is in the code and in the document, each
route of the application is documented, and every answer in the HTTP tests is valid by it. The
tables of docs/api.md and docs/errors.md are compared with it, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamd import __version__
from streamd.auth.signed_urls import PARAMETER
from streamd.http.openapi.elements import SHARED, Json, Path, response
from streamd.http.openapi.parameters import headers, parameters
from streamd.http.openapi.schemas import schemas

_ABOUT = (
    "Append-only byte streams over HTTP. Errors are JSON with a stable code. Every answer has "
    "`Access-Control-Allow-Origin: *`, `Access-Control-Expose-Headers: *`, "
    "`Cross-Origin-Resource-Policy: cross-origin`, `Content-Security-Policy: sandbox` and "
    "`X-Content-Type-Options: nosniff`. Paths below `/cluster` and `/auth` are not for web pages: "
    "their resource policy is `same-origin`, they have none of the `Access-Control-` headers, and "
    "Host must name the node. With `admin.listen` the paths of operators, those below `/cluster` "
    "and `/auth` (not `/auth/sign`) and `/metrics`, are served at that address only. Where tokens "
    "are required, a request without a valid one is 401, and "
    "one that the token's scopes do not permit 403. A method that a path does not have is "
    "answered by `Error405`, a method that no path has by `Error501`; only `PUT`, `POST` and "
    "`DELETE` of a bucket's listing are 400 `INVALID_STREAM_ID`, because no stream can be named "
    "`streams`."
)
_TAGS = {
    "streams": "Create, append, read, close, fork, delete.",
    "buckets": "Names for streams that belong together.",
    "snapshots": "A stream's content so far, published to replace the records it was made from.",
    "subscriptions": "Wake workers when streams have something for them.",
    "node": "For operators.",
}


def build(paths: Iterable[Path]) -> Json:
    """The document of these paths."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "streamd", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        # With `auth.mode = "none"` only the paths below `/auth` need a token.
        "security": [{}, {"token": []}, {"signedUrl": []}, {"certificate": []}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": {path.template: path.item() for path in paths},
        "components": {
            "parameters": parameters(),
            "headers": headers(),
            "schemas": schemas(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the server's own, or a JWT of its issuer.",
                },
                "certificate": {
                    "type": "mutualTLS",
                    "description": "A client certificate that `auth.certificates` lists.",
                },
                "signedUrl": {
                    "type": "apiKey",
                    "in": "query",
                    "name": PARAMETER.decode(),
                    "description": "Made by `streamd sign` or `/auth/sign`.",
                },
            },
            "responses": {
                f"Error{status}": response(status, None, codes) for status, codes in SHARED.items()
            },
        },
    }
