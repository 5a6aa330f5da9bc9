"""The console for browsers (docs/console.md)."""

from __future__ import annotations

from streamd.http.openapi.elements import Operation, Reply, json_content, ref

_FILE_HEADERS = ("Cache-Control", "ETag", "Content-Encoding?", "Vary?")


def _file(name: str, summary: str) -> Operation:
    replies = {
        200: Reply("It is.", _FILE_HEADERS, {"*/*": {"schema": {}}}),
        304: Reply("The browser has it.", ("Cache-Control", "ETag")),
    }
    parameters = ("If-None-Match", "Accept-Encoding")
    return Operation(name, summary, replies, ("404 NOT_FOUND",), parameters)


PAGE = _file("console", "The console, a page for browsers")
FILE = _file("consoleFile", "A file of the console")
SESSION = Operation(
    "consoleSession",
    "Who is asking, and what the console must know of the node",
    {
        200: Reply(
            "They are.",
            ("Cache-Control", "Content-Encoding?", "Vary?"),
            json_content(ref("schemas", "SessionBody")),
        )
    },
    ("404 NOT_FOUND",),
    ("Accept-Encoding",),
)
