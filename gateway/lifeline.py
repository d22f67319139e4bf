"""A child that never outlives its parent: a pipe whose far end only the parent holds.

The parent makes a `Lifeline` and starts `python -m gateway.lifeline DESCRIPTOR MODULE`. That runs MODULE as a program
and watches the pipe: when the parent is gone, however it died, the pipe ends and the child asks itself to stop.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from types import TracebackType

from engine.errors import ModelLoadError
from gateway.failures import EXIT_BAD_MODEL

GRACE_S = 5.0
"""How long an orphan may take to stop before it is ended."""


class Lifeline:
    """The parent's end. Closing it, or dying, ends every child that holds the other end."""

    def __init__(self) -> None:
        # Not inheritable, both: a child gets the reading end by name, and no child ever the writing end.
        self.child_fd, self._held = os.pipe()

    def command(self, module: str) -> list[str]:
        """Command line that runs a module on this lifeline; start it with `pass_fds=(child_fd,)`."""
        return [sys.executable, "-m", "gateway.lifeline", str(self.child_fd), module]

    def close(self) -> None:
        """Lets go. Idempotent."""
        for descriptor in (self.child_fd, self._held):
            if descriptor >= 0:
                os.close(descriptor)
        self.child_fd = self._held = -1

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def watch(descriptor: int) -> None:
    """Starts a thread that ends this process once the pipe has ended: by SIGTERM, and after `GRACE_S` by force."""

    def wait_for_end() -> None:
        while os.read(descriptor, 1):
            continue
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=wait_for_end, name="lifeline", daemon=True).start()


def main() -> None:
    """Entry of the child: `DESCRIPTOR MODULE`."""
    descriptor, module = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(descriptor, False)
    watch(descriptor)
    sys.argv = [module]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModelLoadError as error:
        print(f"{module}: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_MODEL)


if __name__ == "__main__":
    main()
