"""Lists what a tree (`tree.py`) contains as a software bill of materials: CycloneDX 1.6, in JSON.

It has each package of the tree with its version and licence, the Python, and the shared libraries
of the system that were copied. Equal trees give equal bytes: it names no time.

    python packaging/sbom.py TREE FILE
"""

from __future__ import annotations

import json
import platform
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packages import version_of

_PRODUCT = "durable-streamd"


def bill_of(tree: Path) -> dict[str, Any]:
    """The bill of a tree."""
    version = version_of(tree)
    (packages,) = tree.glob("lib/python*/site-packages")
    found = [each for each in distributions(path=[str(packages)]) if each.name != _PRODUCT]
    components = [_package(each) for each in sorted(found, key=lambda each: each.name.lower())]
    components.append(_part("application", "cpython", platform.python_version()))
    components += _libraries(tree)
    url = f"pkg:pypi/{_PRODUCT}@{version}"
    product = _part("application", _PRODUCT, version, url)
    product["licenses"] = [{"expression": "Apache-2.0"}]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, url)}",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
        "dependencies": [
            {"ref": product["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}
        ],
    }


def _package(package: Distribution) -> dict[str, Any]:
    name = package.name.lower().replace("_", "-").replace(".", "-")
    part = _part("library", package.name, package.version, f"pkg:pypi/{name}@{package.version}")
    if expressions := package.metadata.get_all("License-Expression"):
        part["licenses"] = [{"expression": each} for each in expressions]
    else:
        classifiers = package.metadata.get_all("Classifier") or []
        named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License")]
        part["licenses"] = [{"license": {"name": each}} for each in named]
    return part


def _libraries(tree: Path) -> Iterator[dict[str, Any]]:
    """Shared libraries, whose names end with the version of their interface."""
    for path in sorted(tree.glob("lib/*.so.*")):
        name, _, version = path.name.partition(".so.")
        if not name.startswith("libpython"):
            yield _part("library", name, version)


def _part(kind: str, name: str, version: str, purl: str = "") -> dict[str, Any]:
    part = {"type": kind, "bom-ref": purl or f"{name}@{version}", "name": name, "version": version}
    return {**part, "purl": purl} if purl else part


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(bill_of(Path(sys.argv[1])), indent=2) + "\n")
