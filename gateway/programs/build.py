"""Puts together what programs need in one gateway process."""

from __future__ import annotations

from extensions.programs.limits import ProgramLimits
from extensions.runtime import Runtime
from extensions.sandbox.pool import PoolOptions
from gateway.prefixes.service import PrefixService
from gateway.programs.finding import ProgramFinder
from gateway.programs.live import LivePrograms
from gateway.programs.running import ProgramStarter
from gateway.programs.worlds import WorldMaker
from gateway.runs.build import build_doors
from gateway.settings import Settings
from gateway.state.extensions import ExtensionStore
from gateway.state.link import connect
from gateway.tools.service import ToolService


def program_limits(settings: Settings) -> ProgramLimits:
    """What any program may use at most."""
    return ProgramLimits(
        wall_s=settings.program_wall_s,
        exec_s=settings.program_exec_s,
        memory_bytes=settings.program_memory_bytes,
        host_calls=settings.program_calls,
        prefill_tokens=settings.program_prefill_tokens,
        decode_tokens=settings.program_decode_tokens,
        children=settings.program_children,
        contexts=settings.program_contexts,
        kv_bytes=settings.program_kv_bytes or None,
        kv_byte_seconds=settings.program_kv_byte_seconds or None,
        tool_calls=settings.program_tool_calls,
        http_calls=settings.program_http_calls,
        source_bytes=settings.max_program_bytes,
    )


def sandbox_options(settings: Settings) -> PoolOptions:
    """How many processes run programs."""
    return PoolOptions(max_workers=settings.max_programs, min_workers=min(settings.max_programs, 4))


def build_programs(
    settings: Settings, runtime: Runtime, url: str, tools: ToolService, prefixes: PrefixService
) -> ProgramStarter:
    """What starts programs; nothing is started before the first one.

    Args:
        settings: How to serve.
        runtime: Where they run.
        url: Of the Redis that keeps registered programs; empty keeps none.
        tools: What they may call.
        prefixes: What keeps their histories.
    """
    store = None
    if url:
        store = ExtensionStore(
            url,
            max_names=settings.max_extensions,
            max_versions=settings.max_extension_versions,
            max_bytes=settings.max_extension_bytes,
        )
    finder = ProgramFinder(runtime, store)
    worlds = WorldMaker(tools=tools, prefixes=prefixes)
    live = LivePrograms(connect(url) if url else None)
    return ProgramStarter(runtime, finder, worlds, build_doors(settings, url, finder), live)
