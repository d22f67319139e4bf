"""What callers are told that their KV has cost, against what the engine has charged their account."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from engine.connection import EngineConnection
from engine.errors import QuotaExceeded
from engine.kv.commands import SetCeilings
from engine.process import EngineProcess
from engine.text.model import TextModel
from extensions.runtime import Runtime
from tests.equivalence.test_live_contexts import asked, engine_config, go_on
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest.fixture(scope="module")
def process(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    endpoint = f"ipc://{tmp_path_factory.mktemp('run')}/engine.sock"
    with EngineProcess(engine_config(model, "torch"), endpoint) as engine:
        engine.wait_ready(60)
        yield engine


@pytest_asyncio.fixture
async def connection(process: EngineProcess) -> AsyncIterator[EngineConnection]:
    connection = EngineConnection(process.endpoint)
    await connection.connect(30)
    yield connection
    await connection.close()


async def settled(connection: EngineConnection, account: str) -> int:
    """What an account has been charged, once it holds nothing any more."""
    for _ in range(1200):
        charge = connection.charges.get(account)
        if charge is not None and charge.level_kib == 0 and connection.stats.num_running == 0:
            return charge.total_kib_ms
        await asyncio.sleep(0.05)
    raise AssertionError(f"the account still holds {connection.charges.get(account)}")


async def test_what_requests_are_told_adds_up_to_what_their_account_is_charged(
    connection: EngineConnection, model: Path
) -> None:
    runtime = Runtime(connection, TextModel.load(model))
    told = 0
    for count in (1, 3):
        context = runtime.context(list(range(3, 60 * count)), account=f"plain{count}")
        async with await context.generate(replace(asked(max_tokens=30), n=count)) as generation:
            async for _ in generation:
                pass
        told = generation.usage.kv_kib_ms
        assert told > 0
        assert told == await settled(connection, f"plain{count}")
        assert told % connection.info.page_kib == 0


async def test_a_held_context_costs_while_nobody_computes_on_it_and_nothing_once_it_is_released(
    connection: EngineConnection, model: Path
) -> None:
    runtime = Runtime(connection, TextModel.load(model))
    context = runtime.open_context(list(range(3, 90)), account="held")
    await context.prefill()
    before = context.kv_kib_ms
    await asyncio.sleep(0.1)
    await context.update_charge()
    num_kib = 6 * connection.info.page_kib
    assert context.kv_kib_ms - before >= 100 * num_kib
    async with await context.generate(asked(max_tokens=2)) as generation:
        async for _ in generation:
            pass
    fork = context.fork()[0]
    await go_on(fork, asked(max_tokens=2))
    await asyncio.sleep(0.1)
    asked_s = time.monotonic()
    await asyncio.gather(context.update_charge(), fork.update_charge())
    context.release()
    fork.release()
    charged = await settled(connection, "held")
    told = context.kv_kib_ms + fork.kv_kib_ms
    # What they cost between the last time that they asked and their end.
    held_ms = 1000 * (time.monotonic() - asked_s)
    assert charged - 2 * num_kib * held_ms <= told <= charged


async def test_what_a_generation_on_a_context_is_told_includes_the_time_since_the_one_before(
    connection: EngineConnection, model: Path
) -> None:
    runtime = Runtime(connection, TextModel.load(model))
    context = runtime.open_context(list(range(3, 90)), account="waiting")
    usages = []
    for _ in range(2):
        async with await context.generate(asked(max_tokens=3)) as generation:
            async for _ in generation:
                pass
        usages.append(generation.usage.kv_kib_ms)
        await asyncio.sleep(0.1)
    assert sum(usages) <= context.kv_kib_ms
    assert usages[1] >= 100 * 6 * connection.info.page_kib
    context.release()


async def test_a_gateway_that_comes_later_is_told_of_all_accounts(process: EngineProcess, model: Path) -> None:
    first = EngineConnection(process.endpoint)
    await first.connect(30)
    context = Runtime(first, TextModel.load(model)).context(list(range(3, 40)), account="early")
    async with await context.generate(asked(max_tokens=3)) as generation:
        async for _ in generation:
            pass
    charged = await settled(first, "early")
    second = EngineConnection(process.endpoint)
    await second.connect(30)
    assert second.charges["early"].total_kib_ms == charged
    assert second.info.incarnation == first.info.incarnation > 0
    await first.close()
    await second.close()


async def test_an_account_at_its_ceiling_is_refused_and_an_idle_engine_takes_what_it_keeps(
    connection: EngineConnection, model: Path
) -> None:
    runtime = Runtime(connection, TextModel.load(model))
    context = runtime.open_context(list(range(3, 90)), account="poor")
    await context.prefill()
    assert (await context.info()).residency == "device"
    connection.tell(SetCeilings({"poor": context.kv_kib_ms}))
    for _ in range(1200):
        if (await context.info()).residency == "tokens":
            break
        await asyncio.sleep(0.05)
    assert (await context.info()).residency == "tokens"
    with pytest.raises(QuotaExceeded):
        await context.prefill()
    with pytest.raises(QuotaExceeded):
        await runtime.context([3, 4, 5], account="poor").generate(asked(max_tokens=2))
    connection.tell(SetCeilings({"poor": -1}))
    await context.prefill()
    context.release()
