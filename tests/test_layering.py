"""The layers stand: imports point downward, and the pure hearts stay pure.

Each module of the package is read, not run. A part is a package or module directly under
`streamd`; it may import itself and the parts of lower layers, not its neighbours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "streamd"

# From the inside out. Every part is here.
LAYERS = (
    {"auth", "proofs"},
    {"raft", "streams"},
    {"process", "protocol"},
    {"storage", "objectstore", "transport"},
    {"config"},
    {"hosts"},
    {"group"},
    {"audit_trail", "cluster", "tiering"},
    {"backup"},
    {"node"},
    {"http"},
    {"workers"},
    {"app"},
    {"client"},
    {"state"},
    {"commands"},
    {"spark"},
    {"__main__"},
)

# The rooms of `http`, from the inside out; its modules outside of any are above them all.
HTTP_ROOMS = (
    {"protocol", "console", "credentials"},
    {"sockets"},
    {"access", "door"},
    {"http2", "streams", "admin"},
    {"subscriptions"},
    {"openapi"},
    {""},
)

PURE = {"auth", "proofs", "raft", "streams", "protocol", "state"}
# The part of a pure part that acts, on top of it.
ACTING = "state.db"
# Values and types: nothing that acts, or differs between two runs. `random` is for naming the
# type of a generator that is passed in. Of PyJWT only what verifies signatures: the rest reads
# the clock and fetches keys.
PURE_MAY_IMPORT = {
    "__future__", "base64", "binascii", "bisect", "collections", "crc32c",
    "cryptography.exceptions.InvalidSignature", "cryptography.exceptions.InvalidTag",
    "cryptography.exceptions.UnsupportedAlgorithm",
    "cryptography.hazmat.primitives.asymmetric.ed25519.Ed25519PrivateKey",
    "cryptography.hazmat.primitives.asymmetric.ed25519.Ed25519PublicKey",
    "cryptography.hazmat.primitives.ciphers.aead.ChaCha20Poly1305", "dataclasses", "enum",
    "functools", "hashlib", "heapq", "hmac", "ipaddress", "itertools", "json", "jsonschema_rs",
    "jwt.algorithms.get_default_algorithms", "jwt.exceptions.PyJWTError", "math", "msgspec",
    "operator", "random.Random", "re", "string", "struct", "typing",
    "urllib.parse.quote", "urllib.parse.unquote_to_bytes", "zlib",
}  # fmt: skip
ACTING_CALLS = {"open", "print", "input", "Random", "SystemRandom"}

# What in the folders of `streams` is rules and values alone: it knows no streams and no machine.
RULES = {
    *(f"streams.operations.{name}" for name in (
        "changes", "hosts", "model", "planning", "requests", "steering",
    )),
    *(f"streams.subscriptions.{name}" for name in (
        "checks", "globs", "model", "paths", "signing_keys", "tokens", "transitions",
        "webhook_texts", "webhook_urls",
    )),
    "streams.fencing.fences",
}  # fmt: skip

AUDIT = SOURCE.parents[1] / "spark"

# Libraries that only one part or one module uses.
HOMES = {
    "jwt": "auth.jwks",
    "plyvel": "storage.binding",
    "plyvel_next": "storage.binding",
    "minio": "objectstore",
    "httptools": "http",
    "jsonschema_rs": "state.schemas",
    "quart": "http",
    "quart_trio": "http",
    "hypercorn": "http",
    "pyspark": "spark",
    "pyarrow": "spark",
    "streamd_audit": "spark",
}
# The commands verify proofs with what a stranger would use, and with nothing else of the audit.
VERIFIER = ("commands.verifying", "streamd_audit.proof.")


def layer(part: str) -> int:
    """The number of its layer. Raises `StopIteration` for a part without one."""
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def breaches(module: str, source: str) -> list[str]:
    """What the source of a module (`raft.core`) does that its layer must not."""
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        wrong = [f"imports {name}" for name in imported(node) if not may_import(module, name)]
        if is_pure(module):
            wrong += acts(node)
        found += [f"{module}:{getattr(node, 'lineno', 0)} {what}" for what in wrong]
    return found


def imported(node: ast.AST) -> Iterator[str]:
    """Full names of what a statement imports, as `module.name` where it picks a name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from (f"{module}.{alias.name}" for alias in node.names)


def is_pure(module: str) -> bool:
    within = f"{module}.".startswith(f"{ACTING}.")
    return module.split(".", maxsplit=1)[0] in PURE and not within


def may_import(module: str, name: str) -> bool:
    part = module.split(".", maxsplit=1)[0]
    top, *inner = name.split(".")
    if top == "":
        return False  # relative: written out in full, a name shows its layer
    if top == "streamd":
        return not inner or may_use(part, inner[0])
    if is_pure(module) and top not in PURE_MAY_IMPORT and name not in PURE_MAY_IMPORT:
        return False
    if module == VERIFIER[0] and name.startswith(VERIFIER[1]):
        return True
    return top not in HOMES or HOMES[top] in (part, module)


def may_use(part: str, other: str) -> bool:
    if other == part or other == "__version__":
        return other == part or part not in PURE
    return layer(other) < layer(part)


def acts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await) or (
        isinstance(node, ast.comprehension) and node.is_async
    ):
        yield "waits"
    elif isinstance(node, ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in ACTING_CALLS:
            yield f"calls {called}"


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        yield name.removesuffix(".__init__"), path.read_text()


def test_no_module_reaches_beyond_its_layer() -> None:
    read = dict(modules())
    parts = {module.split(".")[0] for module in read} - {"__init__"}
    assert parts == {part for layer in LAYERS for part in layer}
    assert [wrong for module, source in read.items() for wrong in breaches(module, source)] == []


def http_room(module: str) -> str:
    """The room of `http` that a module is in; empty outside of any."""
    rooms = {room for level in HTTP_ROOMS for room in level}
    return next((part for part in module.split(".")[1:2] if part in rooms), "")


def arrows_up(imports: Mapping[str, set[str]]) -> list[str]:
    """Imports from a room of `http` of one that is not below it."""

    def level(module: str) -> int:
        return next(n for n, rooms in enumerate(HTTP_ROOMS) if http_room(module) in rooms)

    return [
        f"{module} imports {other}"
        for module, others in imports.items()
        for other in sorted(others)
        if module.startswith("http.") and other.startswith("http.")
        if http_room(module) != http_room(other) and level(module) <= level(other)
    ]


def test_a_room_of_http_imports_only_rooms_below_it() -> None:
    imports = imports_within({name: source for name, source in modules() if name != "__init__"})
    folders = {path.name for path in (SOURCE / "http").iterdir() if (path / "__init__.py").exists()}
    assert folders | {""} == {room for level in HTTP_ROOMS for room in level}
    assert arrows_up(imports) == []


@pytest.mark.parametrize(
    ("module", "other"),
    [
        ("http.protocol.fields", "http.access.needs"),
        ("http.access.needs", "http.door.reactor"),
        ("http.admin.signing", "http.routes"),
        ("http.streams.writes", "http.openapi"),
        ("http.openapi", "http.routes"),
    ],
)
def test_an_import_of_a_room_that_is_not_below_is_an_arrow_up(module: str, other: str) -> None:
    assert arrows_up({module: {other}})
    assert (
        not arrows_up({other: {module}}) or {http_room(module), http_room(other)} <= HTTP_ROOMS[2]
    )


def imports_within(read: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules that each of some modules imports of the others, also for its types alone."""
    found: dict[str, set[str]] = {}
    for module, source in read.items():
        names = {name for node in ast.walk(ast.parse(source)) for name in imported(node)}
        inner = {name.removeprefix("streamd.") for name in names if name.startswith("streamd.")}
        modules = {name if name in read else name.rpartition(".")[0] for name in inner}
        found[module] = (modules & read.keys()) - {module}
    return found


def test_the_rules_of_subscriptions_and_operations_know_no_streams() -> None:
    imports = imports_within({name: source for name, source in modules() if name != "__init__"})
    assert imports.keys() >= RULES
    assert {name: imports[name] - RULES for name in RULES if imports[name] - RULES} == {}


def circles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules that all reach each other."""
    reached = {module: reachable(module, imports) for module in imports}
    found = []
    for module in imports:
        circle = {other for other in reached[module] if module in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def reachable(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    beyond = set(imports[module])
    while beyond:
        found |= beyond
        beyond = {name for one in beyond for name in imports[one]} - found
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    read = {name: source for name, source in modules() if name != "__init__"}
    assert circles(imports_within(read)) == []


def test_a_circle_is_found_also_if_only_a_type_closes_it() -> None:
    closing = "if TYPE_CHECKING:\n    from streamd.a.one import One"
    read = {
        "a.one": "from streamd.a import two",
        "a.two": "from streamd.b.three import Three",
        "b.three": closing,
        "b.four": "import streamd.a.one",
    }
    assert circles(imports_within(read)) == [{"a.one", "a.two", "b.three"}]
    assert circles(imports_within(read | {"b.three": ""})) == []


def private_parts_of_groups(source: str) -> list[str]:
    """Attributes such as `group._core` and `group.view._core`, where a group is held under any name
    that ends so."""
    return [
        f"{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and re.search(r"group(\.(writes|reads|view|storage))?$", ast.unparse(node.value))
    ]


def test_a_group_is_used_only_through_its_facade() -> None:
    found = {name: private_parts_of_groups(source) for name, source in modules()}
    assert {name: parts for name, parts in found.items() if parts} == {}
    assert private_parts_of_groups("def f(self):\n    self._group._core.tick()")
    assert private_parts_of_groups("def f(self):\n    self._group.view._core.tick()")


def test_the_audit_imports_nothing_of_the_server() -> None:
    sources = sorted(AUDIT.rglob("*.py"))
    assert sources, "the audit is where it is expected"
    imports = {
        (path.name, name)
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node)
    }
    assert [found for found in imports if found[1].split(".")[0] == "streamd"] == []


def server_imports_of_state(module: str, source: str) -> list[str]:
    """Imports of a module of `state` that are neither its own part nor the client's."""
    allowed = ("streamd.state.", "streamd.streams.content.") + (
        () if is_pure(module) else ("streamd.client.",)
    )
    names = {name for node in ast.walk(ast.parse(source)) for name in imported(node)}
    return [
        name
        for name in names
        if name.startswith("streamd.")
        and not (name.startswith(allowed) and (not is_pure(module) or ACTING not in name))
    ]


def test_the_state_library_imports_nothing_of_the_server() -> None:
    of_state = {name: text for name, text in modules() if name.startswith("state")}
    assert of_state, "the library is where it is expected"
    assert {name: server_imports_of_state(name, text) for name, text in of_state.items()} == {
        name: [] for name in of_state
    }
    assert server_imports_of_state("state.db", "from streamd.node.node import Node")
    assert server_imports_of_state("state.events", "from streamd.state.db import StreamDB")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("raft.core", "from streamd.streams.machine import Machine"),
        ("streams.machine", "from streamd.raft import core"),
        ("raft.log", "import streamd.storage.log_store"),
        ("streams.codec", "from streamd.config import settings"),
        ("process.logs", "from streamd.config.settings import Config"),
        ("state.events", "import anyio"),
        ("state.db.sqlite", "from streamd.commands import serve"),
        ("streams.state", "from ..storage import state_store"),
        ("storage.log_store", "from streamd.group.group import Group"),
        ("transport.links", "from streamd.group.group import Group"),
        ("transport.links", "from streamd.storage.data_dir import DataDir"),
        ("group.group", "from streamd.node.node import Node"),
        ("config.settings", "from streamd.group.group import Group"),
        ("group.group", "from streamd.cluster.cluster import Cluster"),
        ("tiering.flush", "from streamd.cluster.cluster import Cluster"),
        ("tiering.gc", "from streamd.backup.archive import Archive"),
        ("backup.archive", "from streamd.node.node import Node"),
        ("group.group", "if True:\n    from streamd.http.protocol.messages import Request"),
        ("node.node", "from streamd.commands.cli import main"),
        ("http.protocol.sse", "import streamd.commands.cli"),
        ("raft.core", "from streamd import __version__"),
    ],
)
def test_an_import_of_an_outer_layer_is_a_breach(module: str, source: str) -> None:
    assert len(breaches(module, source)) == 1


@pytest.mark.parametrize("part", ["raft.core", "streams.machine", "protocol.headers"])
@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from datetime import datetime",
        "import random",
        "from random import randrange",
        "import os.path",
        "from socket import socket",
        "import threading",
        "def f():\n    import trio",
        "async def f(): pass",
        "open('state')",
        "print('debug')",
        "from random import Random\nrandom = Random()",
    ],
)
def test_a_clock_io_randomness_or_waiting_in_a_pure_part_is_a_breach(
    part: str, source: str
) -> None:
    assert len(breaches(part, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("group.group", "import plyvel"),
        ("http.door.front_door", "from plyvel import DB"),
        ("storage.log_store", "import plyvel"),
        ("storage.log_store", "import plyvel_next as plyvel"),
        ("storage.log_store", "import minio"),
        ("node.node", "import httptools"),
        ("commands.cli", "from quart import Quart"),
        ("commands.cli", "import quart_trio"),
        ("node.node", "from hypercorn.trio import serve"),
        ("objectstore.audit", "import pyspark"),
        ("commands.verifying", "from streamd_audit.store import Store"),
        ("commands.reading", "from streamd_audit.proof import verify_record"),
    ],
)
def test_a_library_outside_its_home_is_a_breach(module: str, source: str) -> None:
    assert len(breaches(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("raft.core", "from random import Random\ndef f(random: Random): pass"),
        ("raft.core", "from streamd.raft.log import Log\nfrom collections import deque"),
        ("protocol.headers", "from streamd.streams.bounds import MAX_KEY_BYTES"),
        ("storage.binding", "import plyvel"),
        ("storage.log_store", "import os\nfrom streamd.raft.messages import Entry"),
        ("state.db.sqlite", "import sqlite3, anyio\nasync def f(): pass"),
        ("transport.wire", "import trio, ssl\nfrom streamd.raft.messages import Message"),
        ("group.group", "import trio\nfrom streamd.process.metrics import Metrics"),
        (
            "http.http2.asgi",
            "import quart\nfrom streamd.node.node import Node",
        ),
        (
            "commands.cli",
            "from streamd.app import serve\nfrom streamd import __version__",
        ),
        ("commands.verifying", "from streamd_audit.proof import verify_record"),
    ],
)
def test_an_inward_import_is_not_a_breach(module: str, source: str) -> None:
    assert breaches(module, source) == []


# What speaks HTTP for the library, the commands and Spark's formats: each has one way to do it.
SPEAKS_HTTP = {"client.connecting", "client.driving", "client.async_driving"}


def http_libraries(source: str) -> set[str]:
    names = {name for node in ast.walk(ast.parse(source)) for name in imported(node)}
    found = {name.split(".")[0] for name in names} & {"httpx", "httpcore", "requests", "h11"}
    return found | {name for name in names if name.startswith(("http.client", "urllib.request"))}


def test_only_the_drivers_of_the_library_speak_http() -> None:
    asking = ("client", "commands", "spark", "state")
    found = {
        name
        for name, source in modules()
        if name.split(".")[0] in asking and http_libraries(source)
    }
    assert found == SPEAKS_HTTP
    assert http_libraries("def f():\n    from urllib.request import urlopen")
