"""The one place that knows which package brings LevelDB's Python binding.

The binding is plyvel. Its own releases have wheels for two Pythons on x86-64 with glibc and need
LevelDB's headers everywhere else, so streamd installs two builds of the same source that bundle
LevelDB 1.23 for x86-64 and ARM, glibc and musl: plyvel-ci up to Python 3.11, plyvel-next from 3.12
on, which differ in the name of their module. Database files are the same.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 12):
    import plyvel_next as plyvel
else:
    import plyvel

__all__ = ["plyvel"]
