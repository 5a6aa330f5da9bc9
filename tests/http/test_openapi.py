"""The OpenAPI document describes exactly what the code does.

Nothing is listed here a second time: routes, methods, codes, headers and parameters are taken
from the code that serves them, and looked for in the document; then the other way round.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, get_args

import jsonschema_rs

from streamd.config.settings import Config
from streamd.http.ops import create_ops_app
from streamd.http.protocol.raw_paths import BadPath
from streamd.http.protocol.routing import Target
from streamd.http.router import describe, find
from streamd.node.leader_operations import LeaderOperations
from streamd.node.node import wall_clock_ms
from streamd.node.reports import NodeReports
from streamd.process.metrics import Metrics
from streamd.protocol import headers as table
from streamd.protocol.problems import Problem
from tests.http.serving import serving

HTTP = Path(__file__).parents[2] / "src" / "streamd" / "http"
DOCUMENT = describe()
METHODS = {"get", "head", "post", "put", "delete", "options", "patch", "trace"}
# What frames a request, rather than being a parameter of it; OpenAPI has other places for those.
FRAMING = {
    "host", "origin", "accept", "sec-fetch-mode", "sec-fetch-site",
    "content-type", "content-length", "transfer-encoding", "connection", "expect",
}  # fmt: skip


# -- what the document says -----------------------------------------------------------------------


def documented_methods(template: str) -> set[str]:
    return {key.upper() for key in DOCUMENT["paths"][template] if key in METHODS}


def sample(template: str) -> bytes:
    """A path of that form."""
    return re.sub(r"\{\w+\}", "some", template).encode()


def resolved(node: Any) -> Any:
    if isinstance(node, dict) and "$ref" in node:
        _, kind, name = node["$ref"].removeprefix("#/").split("/")
        return DOCUMENT["components"][kind][name]
    return node


def operations() -> Iterator[dict[str, Any]]:
    for item in DOCUMENT["paths"].values():
        for key, operation in item.items():
            if key in METHODS:
                yield {**operation, "parameters": [
                    *operation.get("parameters", []), *item["parameters"]
                ]}  # fmt: skip


def documented_errors() -> set[tuple[int, str]]:
    """Status and code of all errors that some response may have."""
    shared = DOCUMENT["components"]["responses"]
    responses = [(int(name.removeprefix("Error")), shared[name]) for name in shared]
    for operation in operations():
        responses += [(int(key), resolved(value)) for key, value in operation["responses"].items()]
    return {(status, code) for status, response in responses for code in codes_in(response)}


def codes_in(node: Any) -> Iterator[str]:
    """What the enumerations below a `code` property hold."""
    node = resolved(node)
    if isinstance(node, dict):
        if "code" in node:
            for choice in node["code"].get("anyOf", []):
                yield from resolved(choice)["enum"]
        for value in node.values():
            yield from codes_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from codes_in(value)


def documented_parameters(place: str) -> set[str]:
    found = (resolved(one) for operation in operations() for one in operation["parameters"])
    return {one["name"] for one in found if one["in"] == place}


# -- what the code says ---------------------------------------------------------------------------


def trees() -> Iterator[ast.AST]:
    for path in sorted(HTTP.rglob("*.py")):
        yield ast.parse(path.read_text())


def used_problems() -> set[str]:
    """The names of all problems that some module of the server uses."""
    return {
        node.attr
        for path in HTTP.parent.rglob("*.py")
        if not path.is_relative_to(HTTP / "openapi") and path.parts[-2] != "client"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == Problem.__name__
    }


def byte_keys_of(*names: str) -> set[str]:
    """Keys that are looked up, by ``[]`` or a method, in variables of these names: literals, and
    keys of the table of headers."""
    found: set[str] = set()
    for tree in trees():
        for node in ast.walk(tree):
            match node:
                case (
                    ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[looked_up, *_])
                    | ast.Subscript(value=holder, slice=looked_up)
                ):
                    held = getattr(holder, "id", getattr(holder, "attr", ""))
                case ast.Call(func=ast.Name(), args=[ast.Name(held), looked_up, *_]):
                    pass
                case _:
                    continue
            match looked_up:
                case ast.Constant(bytes(key)) if held in names:
                    found.add(key.decode())
                case ast.Attribute(value=ast.Name(constant), attr="key") if held in names:
                    found.add(getattr(table, constant).lower())
    return found


def sent_headers() -> set[str]:
    """Names in literals that are header lines in wire form, but for those that frame."""
    line = re.compile(rb"(?:^|\r\n|%b)([A-Za-z][A-Za-z-]+): ")
    found: set[str] = set()
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
                found |= {name.decode().lower() for name in line.findall(node.value)}
    found |= {name.lower() for problem in Problem for name in problem.headers}
    return found - FRAMING - {"date", "event"}


# -- the comparison -------------------------------------------------------------------------------


def test_every_kind_of_route_is_a_path_and_has_the_methods_that_are_answered() -> None:
    kinds = set()
    for template in DOCUMENT["paths"]:
        resource, target = find(sample(template))
        kinds.add(type(target))
        assert documented_methods(template) == {*resource.routes, "OPTIONS"}, template
    assert kinds == {*get_args(Target), type(None)} - {BadPath}


async def test_every_route_of_the_operations_app_is_a_path(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        operations = LeaderOperations(server.node)
        reports = NodeReports(server.node, Config(), operations, clock_ms=wall_clock_ms)
        app = create_ops_app(Metrics(), server.node, operations, reports, Random(1), Config())
        rules = app.url_map.iter_rules()
        served: dict[str, set[str]] = {}
        for rule in rules:
            template = re.sub(r"<(\w+)>", r"{\1}", rule.rule)
            served.setdefault(template, {"OPTIONS"}).update(rule.methods or ())
    documented = {
        template: documented_methods(template)
        for template in DOCUMENT["paths"]
        if find(sample(template)).resource.is_operation
    }
    assert documented == served


def test_every_problem_is_met_and_documented_with_its_status() -> None:
    assert {problem.name for problem in Problem} <= used_problems()
    assert documented_errors() == {(problem.status, problem.code) for problem in Problem}


def test_every_request_header_that_is_read_is_documented() -> None:
    # Content-Encoding belongs to no operation: every route with a body refuses it alike.
    looked_at = byte_keys_of("headers") - FRAMING - {"content-encoding"}
    assert {name.lower() for name in documented_parameters("header")} == looked_at


async def test_browsers_may_send_every_header_that_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        allowed = (await client.options("/v1/stream/s")).headers["access-control-allow-headers"]
    # Accept-Encoding is the browser's own business.
    assert documented_parameters("header") - {"Accept-Encoding"} == (
        set(allowed.split(", ")) - {"Content-Type", "Authorization"}
    )


def test_every_query_parameter_that_is_read_is_documented() -> None:
    assert documented_parameters("query") == byte_keys_of("given")


def test_every_response_header_is_documented() -> None:
    told = {name.removesuffix(".optional") for name in DOCUMENT["components"]["headers"]}
    assert {name.lower() for name in told} == sent_headers()


def test_no_component_is_left_over_or_missing() -> None:
    text = json.dumps(DOCUMENT)
    used = set(re.findall(r'"#/components/(\w+/[\w.-]+)"', text))
    there = {f"{kind}/{name}" for kind, group in DOCUMENT["components"].items() for name in group}
    assert used <= there
    # Operations name those of security without a reference.
    elsewhere = ("headers/", "securitySchemes/")
    unused = {name for name in there - used if not name.startswith(elsewhere)}
    # They answer methods that a path does not have, so no operation refers to them.
    assert unused == {"responses/Error405", "responses/Error501"}


def test_every_operation_has_a_unique_name() -> None:
    names = [operation["operationId"] for operation in operations()]
    assert len(set(names)) == len(names)


async def test_the_document_is_served_to_any_origin_and_compressed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        served = await client.get("/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert served.json() == json.loads(json.dumps(DOCUMENT))
    assert served.headers["access-control-allow-origin"] == "*"
    assert served.headers["content-type"] == "application/json"
    assert served.headers["content-encoding"] == "gzip"


async def test_the_status_is_as_documented(tmp_path: Path) -> None:
    schema = {**DOCUMENT["components"]["schemas"]["Status"], "components": DOCUMENT["components"]}
    async with serving(tmp_path) as server, server.client() as client:
        status = (await client.get("/cluster/status")).json()
    jsonschema_rs.validate(schema, status)


async def test_options_lists_the_methods_of_each_path(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for template in DOCUMENT["paths"]:
            answer = await client.options(sample(template).decode())
            assert answer.status_code == 204
            assert set(answer.headers["allow"].split(", ")) == documented_methods(template)
        assert (await client.options("/readyz/nothing")).status_code == 404


async def test_a_path_of_the_operations_app_has_one_spelling(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for path in ("/healthz/", "/readyz//local"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")
