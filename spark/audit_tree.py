"""Compare the log with kept heads: ``python spark/audit_tree.py --store … --expect head.json``."""

from __future__ import annotations

import sys

from streamd_audit.options import start

if __name__ == "__main__":
    sys.exit(start("tree_job"))
