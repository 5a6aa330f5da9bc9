"""The second wheel has what the client and the State Protocol import, and needs three packages."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.packaging.installed import ROOT
from tests.test_layering import imports_within, modules, reachable

SOURCE = ROOT / "src"
LIBRARIES = ("client", "state")


def settings(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path / "pyproject.toml").read_text())


def packed_modules() -> Iterator[str]:
    """Modules in the client's wheel, without `streamd` before them."""
    wheel = settings("packaging/client")["tool"]["hatch"]["build"]["targets"]["wheel"]
    for entry in wheel["force-include"]:
        path = (ROOT / "packaging" / "client" / entry).resolve()
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if file.suffix == ".py":
                yield name_of(file)


def name_of(file: Path) -> str:
    parts = file.relative_to(SOURCE / "streamd").with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def needed_modules() -> set[str]:
    read = dict(modules())
    ours = {name for name in read if name.split(".")[0] in LIBRARIES}
    imports = imports_within(read)
    needed = ours.union(*(reachable(name, imports) for name in ours)) - {"__init__"}
    # Importing a module runs the packages that it is in.
    packages = {name.rpartition(".")[0] for name in needed} - {""}
    return needed | packages | {"__init__"}


def test_it_has_what_the_two_libraries_import_and_no_module_more() -> None:
    packed = set(packed_modules())
    assert needed_modules() <= packed
    # All of the package with the names of the protocol is there, as one entry.
    assert {name for name in packed - needed_modules() if not name.startswith("protocol")} == set()


def test_it_needs_what_the_server_needs_of_the_same_packages() -> None:
    of_client = settings("packaging/client")["project"]
    of_server = settings(".")["project"]
    assert {need.partition(">")[0] for need in of_client["dependencies"]} == {
        "anyio",
        "httpx",
        "msgspec",
    }
    assert set(of_client["dependencies"]) <= set(of_server["dependencies"])
    assert of_client["requires-python"] == of_server["requires-python"]
    extras = of_client["optional-dependencies"]
    assert extras == {name: of_server["optional-dependencies"][name] for name in extras}
