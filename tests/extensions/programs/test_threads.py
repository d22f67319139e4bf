"""Threads of the sandbox's library, in which calls of scripts arrive."""

from __future__ import annotations

import threading

import pytest

from extensions.sandbox import bindings
from extensions.sandbox.threads import keep_thread_state
from tests.extensions.programs.stage import Stage


async def test_a_thread_keeps_what_is_local_to_it_between_calls_of_a_script(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = threading.local()
    calls: list[tuple[int, int]] = []

    def keep() -> None:
        keep_thread_state()
        local.num_calls = getattr(local, "num_calls", 0) + 1
        calls.append((threading.get_native_id(), local.num_calls))

    monkeypatch.setattr(bindings, "keep_thread_state", keep)
    assert await stage.value("return len([lm.now() for _ in range(40)])") == 40
    last: dict[int, int] = dict(calls)
    assert sum(last.values()) == len(calls) >= 40  # none began again from one
