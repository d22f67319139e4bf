"""Puts together what programs need in one gateway process."""

from __future__ import annotations

from extensions.programs.limits import ProgramLimits
from extensions.runtime import Runtime
from extensions.sandbox.pool import PoolOptions
from gateway.programs.finding import ProgramFinder
from gateway.programs.running import ProgramStarter
from gateway.settings import Settings
from gateway.state.extensions import ExtensionStore


def program_limits(settings: Settings) -> ProgramLimits:
    """What any program may use at most."""
    return ProgramLimits(
        wall_s=settings.program_wall_s,
        exec_s=settings.program_exec_s,
        memory_bytes=settings.program_memory_bytes,
        host_calls=settings.program_calls,
        prefill_tokens=settings.program_prefill_tokens,
        decode_tokens=settings.program_decode_tokens,
        contexts=settings.program_contexts,
        tool_calls=settings.program_tool_calls,
        http_calls=settings.program_http_calls,
        source_bytes=settings.max_program_bytes,
    )


def sandbox_options(settings: Settings) -> PoolOptions:
    """How many processes run programs."""
    return PoolOptions(max_workers=settings.max_programs, min_workers=min(settings.max_programs, 4))


def build_programs(settings: Settings, runtime: Runtime, url: str) -> ProgramStarter:
    """What starts programs; nothing is started before the first one.

    Args:
        settings: How to serve.
        runtime: Where they run.
        url: Of the Redis that keeps registered programs; empty keeps none.
    """
    store = None
    if url:
        store = ExtensionStore(
            url,
            max_names=settings.max_extensions,
            max_versions=settings.max_extension_versions,
            max_bytes=settings.max_extension_bytes,
        )
    return ProgramStarter(runtime, ProgramFinder(runtime, store))
