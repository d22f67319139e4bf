"""Leases as a script has them."""

from __future__ import annotations

import itertools

import pytest

from engine.errors import LeaseLost, QuotaExceeded
from engine.leases.lease import LeaseRevoked
from extensions.errors import ScriptError
from tests.extensions.programs.stage import Stage, main_of
from tests.fakes import ScriptedEngine


def engine_of(stage: Stage) -> ScriptedEngine:
    assert isinstance(stage.engine, ScriptedEngine)
    return stage.engine


async def test_a_script_retains_a_context_and_ends_that(stage: Stage) -> None:
    outcome = await stage.run(
        main_of("""
            ctx = await lm.context("hello hello")
            await ctx.prefill()
            lease = await ctx.retain(ttl_s=60, max_bytes=64000000, value=0.8, on_pressure="host")
            before = lease.revoked
            await lease.end()
            await lease.end()
            return [before, lease.revoked, (await ctx.info()).residency]
        """)
    )
    assert outcome.result == [None, None, "device"]
    assert engine_of(stage).contexts.leases == {}
    assert engine_of(stage).watchers == {}


async def test_the_end_of_a_run_ends_its_leases(stage: Stage) -> None:
    await stage.run(
        main_of("""
            ctx = await lm.context("hello")
            await ctx.retain(ttl_s=1, max_bytes=1 << 20)
            await ctx.retain(ttl_s=2.5, max_bytes=1 << 20, on_pressure="fail")
        """)
    )
    assert engine_of(stage).contexts.leases == {}
    assert engine_of(stage).watchers == {}


async def test_a_script_is_told_why_its_lease_is_over(stage: Stage) -> None:
    engine, asked = engine_of(stage), itertools.count()

    def revoke() -> None:
        """The first question is that of the lease itself."""
        if next(asked):
            for lease_id, told in list(engine.watchers.items()):
                told(LeaseRevoked("", lease_id, "pressure"))

    engine.on_describe = revoke
    outcome = await stage.run(
        main_of("""
            ctx = await lm.context("hello")
            lease = await ctx.retain(ttl_s=60, max_bytes=1 << 20)
            before = lease.revoked
            await ctx.info()
            return [before, lease.revoked]
        """)
    )
    assert outcome.result == [None, "pressure"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("ctx.retain(ttl_s=0, max_bytes=1)", "ttl_s must be positive"),
        ("ctx.retain(ttl_s=True, max_bytes=1)", "ttl_s must be a number"),
        ("ctx.retain(ttl_s=10 ** 9, max_bytes=1)", "ttl_s must be positive, and at most"),
        ("ctx.retain(ttl_s=1, max_bytes=0)", "max_bytes must be a whole number, at least 1"),
        ("ctx.retain(ttl_s=1, max_bytes=1.5)", "max_bytes must be a whole number"),
        ("ctx.retain(ttl_s=1, max_bytes=1, value=2)", "value must be between 0 and 1"),
        ("ctx.retain(ttl_s=1, max_bytes=1, on_pressure='burn')", "on_pressure must be one of host"),
    ],
)
async def test_arguments_that_cannot_be_are_told_by_name(stage: Stage, call: str, message: str) -> None:
    source = main_of(f"ctx = await lm.context('hello hello')\nawait ctx.prefill()\nawait {call}")
    with pytest.raises(ScriptError, match=message):
        await stage.run(source, checks=False)


@pytest.mark.parametrize(
    ("error", "code"), [(LeaseLost("pressure"), "lease_revoked"), (QuotaExceeded("tenant"), "quota_exceeded")]
)
async def test_a_script_can_catch_that_what_it_kept_is_gone(stage: Stage, error: Exception, code: str) -> None:
    engine = engine_of(stage)
    engine.refusal = error  # type: ignore[assignment]
    outcome = await stage.run(
        main_of("""
            ctx = await lm.context("hello")
            try:
                await ctx.generate()
            except RuntimeError as error:
                return [str(error)]
        """)
    )
    assert outcome.result[0].startswith(f"{code}: ")
