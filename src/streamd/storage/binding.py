"""The one place that knows which package provides LevelDB's Python binding.

The binding is plyvel. Its own releases have wheels only for two Pythons on x86-64 with glibc;
everywhere else they need LevelDB's headers. So streamd installs two builds of the same source that
bundle LevelDB 1.23 for x86-64 and ARM, glibc and musl: plyvel-ci up to Python 3.11, plyvel-next
from 3.12. They differ in the name of their module. Database files are the same.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 12):
    import plyvel_next as plyvel
else:
    import plyvel

__all__ = ["plyvel"]
