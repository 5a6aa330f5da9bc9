"""Replay the archive: ``python spark/replay_state.py --store … --out DIR``."""

from __future__ import annotations

import sys

from streamd_audit.options import start

if __name__ == "__main__":
    sys.exit(start("state_job"))
