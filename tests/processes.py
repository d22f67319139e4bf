"""Other processes as tests look at them."""

from __future__ import annotations

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Its command; empty if it is gone, or a zombie that somebody has yet to reap."""
    try:
        words: list[str] = process.cmdline()
    except psutil.NoSuchProcess:
        return []
    return words
