"""The bill of materials lists what the single file and the packages contain."""

from __future__ import annotations

import json
import re

import pytest

from tests.packaging.conftest import Built
from tests.packaging.installed import ROOT

pytestmark = pytest.mark.long


def test_the_bill_has_each_package_in_the_version_of_the_lock(built: Built) -> None:
    bill = json.loads(built.bill.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    versions = {part["name"].lower(): part["version"] for part in bill["components"]}
    lock = (ROOT / "requirements.lock").read_text()
    locked = re.findall(r"^([\w.-]+)==(\S+)$", lock, re.MULTILINE)
    assert {"trio", "cryptography", "msgspec", "cpython", "libcrypto"} <= versions.keys()
    for name, version in locked:
        assert versions.get(name.lower(), version) == version
    references = [part["bom-ref"] for part in bill["components"]]
    assert len(references) == len(set(references))
