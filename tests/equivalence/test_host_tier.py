"""KV that was moved to host memory: what comes back predicts what a fresh prompt predicts, on real tensors."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.build import build_loop
from engine.config import KVConfig
from engine.engine import open_engine
from engine.errors import LeaseLost
from engine.loop import EngineLoop
from engine.text.model import TextModel
from extensions.live_context import LiveContext
from extensions.runtime import Runtime
from tests.equivalence.harness import STEPS
from tests.equivalence.test_live_contexts import asked, engine_config, go_on, no_page_is_used
from tests.tiny_models import write_tiny_model

IDS = list(range(3, 90))


class Hosted:
    """An engine with a pool of a few pages and as many of host memory."""

    def __init__(self, loop: EngineLoop, runtime: Runtime) -> None:
        self.runtime = runtime
        self.tier = loop._scheduler.tier

    async def press(self) -> None:
        """Somebody else needs all pages for a moment."""
        other = self.runtime.open_context([5] * 220)
        await other.prefill()
        other.release()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest_asyncio.fixture(params=STEPS)
async def hosted(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[Hosted]:
    config = engine_config(model, request.param)
    kv = KVConfig(num_pages=16, prefix_cache=False, host_bytes=1 << 20)
    loop = build_loop(dataclasses.replace(config, kv=kv))
    assert loop.info.host_pages >= 16
    async with open_engine(loop) as engine:
        yield Hosted(loop, Runtime(engine, TextModel.load(model)))
        await no_page_is_used(engine)
        assert loop._scheduler.tier.num_free == loop.info.host_pages


async def logprobs(context: LiveContext) -> list[float]:
    return list((await context.next(top=-1)).logprobs)


async def test_logits_after_a_restore_are_those_of_a_fresh_prompt(hosted: Hosted) -> None:
    context = hosted.runtime.open_context(IDS)
    generated = await go_on(context, asked(max_tokens=5))
    before = await logprobs(context)
    await context.retain(ttl_s=60, max_bytes=1 << 24, on_pressure="host")
    await hosted.press()
    assert (await context.info()).residency == "host"
    after = await logprobs(context)
    assert hosted.tier.num_restored == 6
    assert (await context.info()).residency == "device"
    fresh = hosted.runtime.open_context([*IDS, *generated])
    expected = await logprobs(fresh)
    assert after == pytest.approx(before, abs=1e-4)
    assert after == pytest.approx(expected, abs=0.05)
    assert await go_on(context, asked(max_tokens=8)) == await go_on(fresh, asked(max_tokens=8))
    context.release()
    fresh.release()


async def test_a_context_without_some_of_its_pages_comes_back_as_it_was(hosted: Hosted) -> None:
    context = hosted.runtime.open_context(IDS)
    await context.prefill()
    context.drop(16, 64)
    await go_on(context, asked(max_tokens=3))
    before = await logprobs(context)
    await context.retain(ttl_s=60, max_bytes=1 << 24, on_pressure="host")
    for _ in range(2):
        await hosted.press()
        info = await context.info()
        assert (info.residency, info.num_pages) == ("host", 3)
        assert await logprobs(context) == pytest.approx(before, abs=1e-4)
    assert hosted.tier.num_restored == 6
    context.release()


async def test_one_that_is_cut_and_goes_on_otherwise_while_it_is_away_comes_back_right(hosted: Hosted) -> None:
    context = hosted.runtime.open_context(IDS)
    await context.prefill()
    await context.retain(ttl_s=60, max_bytes=1 << 24, on_pressure="host")
    await hosted.press()
    context.truncate(40)
    context.append([7, 8, 9])
    fresh = hosted.runtime.open_context([*IDS[:40], 7, 8, 9])
    assert await logprobs(context) == pytest.approx(await logprobs(fresh), abs=0.05)
    assert hosted.tier.num_restored == 3
    context.release()
    fresh.release()


async def test_forks_of_one_that_is_away_are_right_too(hosted: Hosted) -> None:
    context = hosted.runtime.open_context(IDS)
    await context.prefill()
    await context.retain(ttl_s=60, max_bytes=1 << 24, on_pressure="host")
    await hosted.press()
    (fork,) = context.fork()
    fork.append([11])
    fresh = hosted.runtime.open_context([*IDS, 11])
    found, same, expected = await asyncio.gather(logprobs(fork), logprobs(context), logprobs(fresh))
    assert found == pytest.approx(expected, abs=0.05)
    assert len(same) == len(found)
    for one in (context, fork, fresh):
        one.release()


async def test_a_holder_is_told_that_its_lease_is_over_and_refused_if_it_wanted_that(hosted: Hosted) -> None:
    context = hosted.runtime.open_context(IDS)
    await context.prefill()
    lease = await context.retain(ttl_s=60, max_bytes=1 << 24, value=0.3, on_pressure="fail")
    assert lease.ended is None
    await hosted.press()
    assert (await context.info()).residency == "tokens"
    assert lease.ended == "pressure"
    with pytest.raises(LeaseLost):
        await context.prefill()
    await context.prefill()
    context.release()


async def test_a_lease_ends_with_its_time(hosted: Hosted) -> None:
    context = hosted.runtime.open_context(IDS)
    await context.prefill()
    lease = await context.retain(ttl_s=0.05, max_bytes=1 << 24)
    for _ in range(3000):
        if lease.ended is not None:
            break
        await asyncio.sleep(0.02)
    assert lease.ended == "expired"
    again = await context.retain(ttl_s=60, max_bytes=1 << 24)
    again.end()
    assert again.ended == "ended"
    assert (await context.info()).lease_id == ""
    context.release()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ttl_s": 0}, "ttl_s must be positive"),
        ({"max_bytes": 0}, "max_bytes must be positive"),
        ({"value": 1.5}, "value between 0 and 1"),
        ({"on_pressure": "burn"}, "on_pressure must be one of host, tokens, release, fail"),
        ({"max_bytes": 1024}, "more than max_bytes"),
    ],
)
async def test_a_lease_that_cannot_be_is_refused(hosted: Hosted, fields: dict[str, object], message: str) -> None:
    context = hosted.runtime.open_context(IDS)
    await context.prefill()
    with pytest.raises(ValueError, match=message):
        await context.retain(**{"ttl_s": 60, "max_bytes": 1 << 24, **fields})  # type: ignore[arg-type]
    context.release()
