"""Verify a proof, without a network: ``python spark/verify.py PROOF --key KEY``.

With ``--heads OLD NEW`` verify that a log has only grown. Exits with 0 if that is proved, with 1 if
it is not.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from streamd_audit.proof import NotProved, verify_heads, verify_record


def main() -> int:
    parser = ArgumentParser(description="Verify a proof of a record, or that a log has only grown.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("proof", nargs="?", type=Path, help="the file to verify")
    what.add_argument("--heads", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--key", required=True, help="the key to trust")
    asked = parser.parse_args()
    try:
        if asked.heads:
            old, new = (path.read_bytes() for path in asked.heads)
            heads = verify_heads(old, new, asked.key)
            print("PROVED: the first log is the beginning of the second", *heads, sep="\n")
        else:
            proved = verify_record(asked.proof.read_bytes(), asked.key)
            print(f"PROVED: {proved}\n{proved.head}")
    except NotProved as error:
        print(f"NOT PROVED: {error}")
        return 1
    except OSError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
