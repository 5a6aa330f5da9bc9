"""Fuzzes one target with atheris: ``python -m tests.fuzz NAME [option of libFuzzer]…``.

``--plant`` breaks the parser of paths first, to see that the fuzzer finds it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["streamd.auth", "streamd.http"]):
    from streamd.http.protocol import raw_paths
    from tests.fuzz.targets import TARGETS

DIRECTORY = Path("build") / "fuzz"


def main() -> None:
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    if "--plant" in options:
        options.remove("--plant")
        # As if its author had not thought of lower case.
        raw_paths._ESCAPED_SLASH = re.compile(rb"%2F")
    corpus = DIRECTORY / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    prefix = f"-artifact_prefix={DIRECTORY}/crash-{name}-"
    atheris.Setup([sys.argv[0], prefix, *options, str(corpus)], target.run)
    atheris.Fuzz()


main()
