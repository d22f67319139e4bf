"""How much a run may use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from extensions.errors import ArgumentsInvalid


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramLimits:
    """What a run may use at most; whoever exceeds one of these ends with `ScriptLimitExceeded`.

    Attributes:
        wall_s: Seconds from admission to the end.
        exec_s: Seconds in which the script itself computes; waiting for the model does not count.
        memory_bytes: Of the script's own values.
        recursion: Depth of calls.
        host_calls: Calls of anything the server gives the script.
        prefill_tokens: Tokens to compute that the script gave: prompts and what it appends; forks and cached tokens
            count where they are computed again.
        decode_tokens: Tokens that the model generates.
        tool_calls: Calls of tools, those of `tool_loop` included.
        http_calls: Requests of its own to other servers.
        children: Programs that it may start, and those that these start, over all its time.
        kv_bytes: KV that is charged to its account at once for its contexts, and for those of programs that it starts;
            None for no limit of its own.
        kv_byte_seconds: KV that is charged in all, bytes times seconds; None as above.
        contexts: Contexts that exist at once. Asking for more raises `MemoryError` inside the script, which may release
            some and go on.
        generations: Generations that run at once; more wait for their turn.
        output_bytes: Text and events sent to the client, in UTF-8 and JSON.
        result_bytes: What `main` returns, as JSON.
        log_bytes: What it prints.
        source_bytes: The script itself.
    """

    wall_s: float = 300.0
    exec_s: float = 10.0
    memory_bytes: int = 64 * 2**20
    recursion: int = 500
    host_calls: int = 100_000
    prefill_tokens: int = 1_000_000
    decode_tokens: int = 100_000
    tool_calls: int = 256
    http_calls: int = 256
    children: int = 64
    kv_bytes: int | None = None
    kv_byte_seconds: float | None = None
    contexts: int = 256
    generations: int = 128
    output_bytes: int = 8 * 2**20
    result_bytes: int = 2**20
    log_bytes: int = 64 * 2**10
    source_bytes: int = 256 * 2**10

    def narrowed(self, asked: Mapping[str, Any]) -> ProgramLimits:
        """These, made smaller as a request asks; `source_bytes` is not for requests.

        Raises:
            ArgumentsInvalid: A limit is unknown, no positive number, or larger than here.
        """
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "source_bytes"}
        for name, value in asked.items():
            if name not in own:
                known = ", ".join(sorted(own))
                raise ArgumentsInvalid(f"there is no limit {name!r}; limits are {known}", f"limits.{name}")
            _check(name, value, own[name])
        read: dict[str, Any] = {
            name: float(value) if name in _MEASURED else int(value) for name, value in asked.items()
        }
        return replace(self, **read)


_MEASURED = ("wall_s", "exec_s", "kv_byte_seconds")
"""Those that need not be whole numbers."""


def _check(name: str, value: object, most: float | None) -> None:
    param = f"limits.{name}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ArgumentsInvalid(f"{param} must be a positive number", param)
    if name not in _MEASURED and value != int(value):
        raise ArgumentsInvalid(f"{param} must be a whole number", param)
    if most is not None and value > most:
        raise ArgumentsInvalid(f"{param} must be at most {most:g} here, got {value:g}", param)
