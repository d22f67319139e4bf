"""What the threads of the sandbox's library keep between their calls of Python.

Those threads are not Python's own: each call attaches a thread state, made new and thrown away again with its memory,
which the kernel must tell all other cores of. Beside a decoding step, which is on all cores, that was a sixth of what a
script's call costs.
"""

from __future__ import annotations

import ctypes
import threading

_thread = threading.local()


def keep_thread_state() -> None:
    """Lets the calling thread keep its state from now on: as long as it lives, tens of KiB each.

    By the counter of [PyGILState_Ensure](https://docs.python.org/3/c-api/init.html), which is never counted down. What
    is local to a thread is gone with its state, so this counts once for each.
    """
    if not getattr(_thread, "is_kept", False):
        ctypes.pythonapi.PyGILState_Ensure()
        _thread.is_kept = True
