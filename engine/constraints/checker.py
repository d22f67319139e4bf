"""Tries grammars in a child process before the engine compiles them: what kills or fills that one stays there."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time

import msgspec

from engine.constraints.limits import COMPILE_CPU_S, COMPILE_WALL_S
from engine.errors import ResourceExhausted

_ORPHAN_S = 1.0
"""How much longer a child may take whose engine is no longer there to end it."""

_TOO_DEAR = "it takes too much processor time or memory to compile"


class GrammarChecker:
    """One child, started when it is first needed and again after it had to be killed. Safe to use from threads.

    Args:
        cpu_s: Most processor time that one grammar may take.
        wall_s: Longest that one may take in all.
    """

    def __init__(self, cpu_s: float = COMPILE_CPU_S, wall_s: float = COMPILE_WALL_S) -> None:
        self._cpu_s = cpu_s
        self._wall_s = wall_s
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def check(self, grammar: str) -> str:
        """Returns what is wrong with a grammar, or nothing. Blocks until that is known.

        Raises:
            ResourceExhausted: The machine is too busy to find out.
        """
        with self._lock:
            if self._closed:
                return "the engine is stopping"
            child = self._running()
            if self._closed:  # meanwhile; whoever closes has not seen this child
                self._end()
                return "the engine is stopping"
            try:
                fault = self._ask(child, msgspec.json.encode(grammar) + b"\n")
            except ResourceExhausted:
                self._end()
                raise
            if fault is None:
                self._end()
                return _TOO_DEAR
            return fault

    def close(self) -> None:
        """Ends the child; a check under way ends too. Idempotent."""
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "engine.constraints.checker_child",
                    str(self._cpu_s),
                    str(self._wall_s + _ORPHAN_S),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a library that gives up writes there, with the grammar in it
            )
        return self._child

    def _ask(self, child: subprocess.Popen[bytes], question: bytes) -> str | None:
        """The child's answer; None if it ended instead."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(question)
            child.stdin.flush()
        except BrokenPipeError:
            return None
        answer, deadline_s = b"", time.monotonic() + self._wall_s
        while not answer.endswith(b"\n"):
            left_s = max(deadline_s - time.monotonic(), 0.0)
            if not select.select([child.stdout], [], [], left_s)[0]:
                raise ResourceExhausted("a constraint could not be compiled in time: the machine is too busy")
            data = os.read(child.stdout.fileno(), 65536)
            if not data:
                return None
            answer += data
        return msgspec.json.decode(answer, type=str)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
