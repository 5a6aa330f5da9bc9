"""Audit packs and their slices: ``python spark/audit_chunks.py --store … --out DIR``."""

from __future__ import annotations

import sys

from streamd_audit.options import start

if __name__ == "__main__":
    sys.exit(start("chunks_job"))
