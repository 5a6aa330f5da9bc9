"""Builds the C extension at installation, if there is a compiler.

Without one the installation is complete as well: the module has a twin in Python
(`streamd.http.sockets.batch_io`). An editable installation gets the extension beside its source,
a wheel contains it. It keeps to the part of CPython's interface that is the same from 3.11 on, so
one wheel serves all versions of a platform. Equal sources and compilers give equal bytes.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

NAME = "streamd.http.sockets._batch_io"
SOURCE = "src/streamd/http/sockets/_batch_io.c"
# Debugging information names the directory of the build.
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-g0"]


class BuildHook(BuildHookInterface):
    """What Hatchling calls around the building of a wheel, an editable one included."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the extension, or leave it out."""
        self._scratch = Path(mkdtemp())
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        target = root / "src" if version == "editable" else self._scratch
        built = _build(root / SOURCE, target, self._scratch)
        if built is not None and version != "editable":
            build_data["force_include"][str(built)] = str(built.relative_to(target))
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what only the building needed."""
        rmtree(self._scratch)


def _build(source: Path, target: Path, scratch: Path) -> Path | None:
    """Build the extension below `target`. None if that fails, as it does without a compiler."""
    extension = Extension(
        NAME, [str(source)], optional=True, extra_compile_args=FLAGS, py_limited_api=True
    )
    command = build_ext(Distribution({"name": "streamd", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(target), str(scratch)
    command.ensure_finalized()
    built = Path(command.get_ext_fullpath(NAME))
    for older in built.parent.glob(f"{built.name.partition('.')[0]}.*.so"):
        older.unlink()  # It must not stay in use if this fails, nor hide the new one.
    command.run()
    return built if built.exists() else None
