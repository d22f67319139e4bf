"""Compiles grammars that may be harmful, in a process of its own: one that takes for ever is killed with it.

arguments        seconds of processor time after which it ends itself amid a grammar, and seconds after which it does
                 so anyway: whoever asked would have killed it, were it not gone
standard input   JSON lines, each a grammar (a string)
standard output  JSON lines, each what is wrong with it (a string), empty for nothing
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import threading

import msgspec
from llguidance import LLMatcher, LLTokenizer

from engine.constraints.limits import COMPILE_BYTES, parser_limits
from engine.constraints.vocabulary import SPECIAL_ID, byte_tokenizer

NICENESS = 10
"""Steps go before checks."""

STACK_BYTES = 2**20
"""Less than any thread of the engine has: what does not overflow here overflows nowhere."""

_TOKEN_ID = re.compile(r"<\[[0-9]+\]>")


def main() -> int:
    """Checks grammars until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_answer, args=(float(sys.argv[1]), float(sys.argv[2])))
    thread.start()
    thread.join()
    return 0


def _answer(cpu_s: float, wall_s: float) -> None:
    tokenizer = byte_tokenizer()
    _limit_memory()
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        signal.setitimer(signal.ITIMER_REAL, wall_s)
        fault = check(msgspec.json.decode(line, type=str), tokenizer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(msgspec.json.encode(fault) + b"\n")
        sys.stdout.buffer.flush()


def check(grammar: str, tokenizer: LLTokenizer) -> str:
    """Returns what is wrong with a grammar, or nothing. Special tokens by their ids are taken for one of its own."""
    grammar = _TOKEN_ID.sub(f"<[{SPECIAL_ID}]>", grammar)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error() or _impossible(matcher)


def _impossible(matcher: LLMatcher) -> str:
    if matcher.is_stopped() and not matcher.is_accepting():
        return "nothing can satisfy it"
    return ""


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = used + COMPILE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main())
