"""Runs a command as the terminal's foreground job and exits as it exits.

`make` dies of a Ctrl-C even if the program it started shuts down in good order. A program that is its own foreground
job, as a shell would start it, gets the Ctrl-C alone, and `make` sees only how it ended. Without a terminal, or in the
background, the command simply replaces this process.
"""

from __future__ import annotations

import os
import signal
import sys


def _controlled_terminal() -> int | None:
    """File descriptor of the terminal whose foreground job we belong to, or None."""
    try:
        terminal = sys.stdin.fileno()
        return terminal if os.tcgetpgrp(terminal) == os.getpgrp() else None
    except (OSError, ValueError):
        return None


def main(command: list[str]) -> int:
    """Runs `command`; returns its exit code, 128 + n if signal n ended it."""
    terminal = _controlled_terminal()
    if terminal is None:
        os.execvp(command[0], command)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    ours = os.getpgrp()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(terminal, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(command[0], command)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    _, status = os.waitpid(child, 0)
    os.tcsetpgrp(terminal, ours)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
