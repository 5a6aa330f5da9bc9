"""The elements of which the OpenAPI 3.1 document is assembled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from streamd.protocol.problems import Problem

Json = dict[str, Any]

JSON_TYPE = "application/json"
_PREFLIGHT = (
    "Access-Control-Allow-Methods",
    "Access-Control-Allow-Headers",
    "Access-Control-Max-Age",
)
# By the keys that the operations name: status and code.
ERRORS = {f"{problem.status} {problem.code}": problem for problem in Problem}
# Errors that any request can meet: the first section of the table.
EVERYWHERE = tuple(ERRORS)[: tuple(Problem).index(Problem.NOT_FOUND)]

# Of all that the audit trail records before it happens.
ACTS = ("503 AUDIT_UNAVAILABLE",)
# Of a node that is not a member of its cluster.
OUTSIDE = ("503 NODE_REMOVED", "503 NODE_DATA_LOST", "503 NODE_NOT_ADDED")
# What web pages get from the administration of a node.
GUARDED_POST = ("415 UNSUPPORTED_MEDIA_TYPE",)
# Errors of methods that are not in the document.
ELSEWHERE = ("405 METHOD_NOT_ALLOWED", "501 METHOD_UNKNOWN")


def by_status(errors: Iterable[str]) -> dict[int, list[str]]:
    """The codes of errors, by status."""
    found: dict[int, list[str]] = {}
    for error in errors:
        status, code = error.split()
        found.setdefault(int(status), []).append(code)
    return found


SHARED = by_status((*EVERYWHERE, *ELSEWHERE))


class Reply(NamedTuple):
    """A response. Those of its `headers` that end in ``?`` are optional."""

    description: str
    headers: tuple[str, ...] = ()
    content: Json | None = None


class Operation(NamedTuple):
    """A method of a path. `errors` are keys of `ERRORS`; those of the path and of every
    request are added."""

    operation_id: str
    summary: str
    replies: Mapping[int, Reply]
    errors: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    body: Json | None = None
    description: str = ""

    def head(self) -> Operation:
        """The same for HEAD."""
        return self._replace(
            operation_id=f"{self.operation_id}Head", summary=f"{self.summary}: the head alone"
        )


class Path(NamedTuple):
    """A path and what its operations share: a tag, errors, and a suffix of their ids. Web pages may
    not use one that is `private`. The audit trail has what changes one that is `recorded`."""

    template: str
    operations: Mapping[str, Operation]
    private: bool
    recorded: bool
    tag: str
    errors: tuple[str, ...]
    id_suffix: str

    def item(self) -> Json:
        """The document's path item, OPTIONS included."""
        names = re.findall(r"{(\w+)}", self.template)
        found: Json = {"parameters": [ref("parameters", name) for name in names]}
        for method, operation in {**self.operations, "OPTIONS": self._preflight()}.items():
            found[method.lower()] = self._operation(method, operation)
        return found

    def _preflight(self) -> Operation:
        named = self.id_suffix + "".join(
            part.strip("{}").title() for part in self.template.replace(".", "/").split("/")
        )
        headers = ("Allow",) if self.private else ("Allow", *_PREFLIGHT)
        reply = Reply("The methods and headers that are allowed here.", headers)
        return Operation(f"preflight{named}", "The methods of the path", {204: reply})

    def _operation(self, method: str, operation: Operation) -> Json:
        errors = () if method == "OPTIONS" else operation.errors
        if self.private:
            errors = (*errors, *(GUARDED_POST if method == "POST" else ()))
        if self.recorded and method not in ("GET", "HEAD", "OPTIONS"):
            errors = (*errors, *ACTS)
        found: Json = {
            "operationId": operation.operation_id + self.id_suffix,
            "tags": [self.tag],
            "summary": operation.summary,
            "responses": _responses(operation.replies, (*self.errors, *errors), method != "HEAD"),
        }
        if operation.description:
            found["description"] = operation.description
        if operation.parameters:
            found["parameters"] = [ref("parameters", name) for name in operation.parameters]
        if operation.body is not None and method != "HEAD":
            found["requestBody"] = operation.body
        return found


def _responses(replies: Mapping[int, Reply], errors: Iterable[str], has_body: bool) -> Json:
    codes = by_status(dict.fromkeys((*errors, *EVERYWHERE)))
    return {
        str(status): _response(status, replies.get(status), codes.get(status, []), has_body)
        for status in sorted({*replies, *codes})
    }


def _response(status: int, reply: Reply | None, codes: list[str], has_body: bool) -> Json:
    if reply is None and codes == SHARED.get(status):
        return ref("responses", f"Error{status}")
    return response(status, reply, codes, has_body)


def response(status: int, reply: Reply | None, codes: list[str], has_body: bool = True) -> Json:
    """The response with a status: a reply, errors with these codes, or either."""
    errors = {code: ERRORS[f"{status} {code}"] for code in codes}
    found: Json = {"description": _told(status, reply, errors)}
    headers = {name.rstrip("?"): name.endswith("?") for name in reply.headers} if reply else {}
    for error in errors.values():
        headers |= dict.fromkeys(error.headers, True)
    if headers:
        found["headers"] = {
            name: ref("headers", f"{name}.optional" if optional else name)
            for name, optional in headers.items()
        }
    content = _content(status, reply, codes)
    if content and has_body:
        found["content"] = content
    return found


def _told(status: int, reply: Reply | None, errors: Mapping[str, Problem]) -> str:
    own = [code for code in errors if code not in SHARED.get(status, [])]
    lines = [reply.description] if reply else []
    lines += [f"`{code}`: {errors[code].meaning}" for code in own or errors]
    if 0 < len(own) < len(errors):
        lines.append(f"Or an error of any request: see `Error{status}`.")
    return "\n".join(lines)


def _content(status: int, reply: Reply | None, codes: list[str]) -> Json:
    content = dict(reply.content or {}) if reply else {}
    if codes:
        schema = _error_schema(status, codes)
        if JSON_TYPE in content:
            schema = {"anyOf": [content[JSON_TYPE]["schema"], schema]}
        content[JSON_TYPE] = {"schema": schema}
    return content


def _error_schema(status: int, codes: list[str]) -> Json:
    shared = SHARED.get(status, [])
    one_of: list[Json] = []
    if own := [code for code in codes if code not in shared]:
        one_of.append({"enum": own})
    if len(own) < len(codes):
        one_of.append(ref("schemas", f"Code{status}"))
    narrowed = {"properties": {"error": {"properties": {"code": {"anyOf": one_of}}}}}
    return {"allOf": [ref("schemas", "Error"), narrowed]}


def json_content(schema: Json) -> Json:
    """Content of the type JSON_TYPE alone."""
    return {JSON_TYPE: {"schema": schema}}


def ref(kind: str, name: str) -> Json:
    """A reference to a shared component."""
    return {"$ref": f"#/components/{kind}/{name}"}
