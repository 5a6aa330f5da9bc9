"""`python spark/usage_report.py --store … --out DIR`: what is in a cold store, for whom."""

import sys

from streamd_audit.options import start

if __name__ == "__main__":
    sys.exit(start("usage"))
