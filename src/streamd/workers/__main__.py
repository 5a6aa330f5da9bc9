"""The process of a worker: its arguments are the descriptor of its link, and its parent."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _die_with(parent: int) -> None:
    """End with the parent, even in an endless loop. The thread that started this process is one
    that does not end before the parent does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


# All before the imports, which take a second. The group's process decides what a signal from the
# terminal means to all of them.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
_die_with(int(sys.argv[2]))

from streamd.workers.worker import main  # noqa: E402

main(int(sys.argv[1]))
