"""``python -m examples.usage --store … --out DIR``."""

from __future__ import annotations

import sys

from examples.usage.report import main

if __name__ == "__main__":
    main(sys.argv[1:])
