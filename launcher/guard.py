"""Becomes the command it is given, such that the command dies with its parent: `guard.py PARENT_PID
COMMAND...`.

A process of its own, since between fork and exec a threaded Python program must not run code.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):  # it died before the line above took effect
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])
