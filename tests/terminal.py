"""A command in a terminal of its own, so that tests can press Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Mapping, Sequence

CTRL_C = b"\x03"


class TerminalSession:
    """A running command and all it has printed.

    Attributes:
        pid: Its process.
        output: What it printed so far.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.output = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], list(command), {**os.environ, **(environment or {})})

    def press(self, keys: bytes) -> None:
        """Types on the keyboard."""
        os.write(self._terminal, keys)

    def wait_for(self, text: str, timeout_s: float = 120.0) -> None:
        """Reads until `text` has been printed.

        Raises:
            AssertionError: It was not printed in time, or the command ended before.
        """
        deadline = time.monotonic() + timeout_s
        while text not in self.output:
            assert self._read(deadline), f"{text!r} was not printed:\n{self.output}"

    def wait(self, timeout_s: float = 120.0) -> int:
        """Reads to the end and returns the exit code, negative for a signal."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        os.close(self._terminal)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _read(self, deadline: float) -> bool:
        """Reads what comes next; False at the end or after the deadline."""
        ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            piece = os.read(self._terminal, 65536)
        except OSError:  # Linux reports the end of a terminal as an I/O error
            return False
        self.output += piece.decode(errors="replace")
        return bool(piece)
