"""A turn with tools seen from inside: what it holds while it lasts, and lets go of however it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fastapi import FastAPI

from engine.text.model import TextModel
from extensions.tools.catalog import ToolCaller
from gateway.routes.with_tools import begin_turn
from gateway.schemas.base import validate
from gateway.schemas.chat import ChatRequest
from gateway.services import Services
from gateway.tenancy.payer import Payer
from gateway.tenancy.tickets import Ticket
from gateway.tools.turn import ToolTurn
from tests.extensions.tools.service import Service
from tests.fakes import ScriptedEngine
from tests.gateway.tools.saying import call, says_in_turn
from tests.gateway.wire import chat

WEATHER = call("weather", city="Oslo")


@pytest.fixture
def settled() -> list[Ticket]:
    """Tickets that have been settled."""
    return []


@pytest.fixture
def ticket(settled: list[Ticket]) -> Ticket:
    return Ticket("req", "ann", "key", 0, {}, settled.append)


async def begun(app: FastAPI, ticket: Ticket, *names: str) -> ToolTurn:
    services: Services = app.state.services
    caller = ToolCaller(account="ann", run_id="run")
    offers = await services.tools.resolver.by_name(names, (), caller)
    body = validate(ChatRequest, chat(max_tokens=400)).model_copy(update={"tools": offers.tools()})
    payer = Payer("ann", "", ticket)
    return await begin_turn(services, body, offers, caller, payer=payer, model="m", max_calls=None)


async def test_a_request_is_settled_once_with_all_rounds(
    app: FastAPI, engine: ScriptedEngine, model: TextModel, ticket: Ticket, settled: list[Ticket]
) -> None:
    engine.script = says_in_turn(model, WEATHER, WEATHER, "Done.")
    turn = await begun(app, ticket, "weather")
    ticket.leave()  # whoever sent the answer to the client is done, as with work in the background
    async for _ in turn:
        assert settled == []
    usage = turn.usage
    await turn.aclose()
    await turn.aclose()
    assert settled == [ticket]
    assert ticket.used["output"] == usage.num_completion_tokens
    assert ticket.used["input"] == usage.num_prompt_tokens == sum(len(one.prompt_ids) for one in engine.requests)


async def test_a_turn_that_is_closed_in_a_call_ends_it_and_is_settled(
    app: FastAPI,
    engine: ScriptedEngine,
    model: TextModel,
    ticket: Ticket,
    settled: list[Ticket],
    service: Service,
) -> None:
    engine.script = says_in_turn(model, call("slow", city="x") + "\n" + call("slow", city="y"), "Done.")
    turn = await begun(app, ticket, "slow")
    ticket.leave()
    reading = asyncio.create_task(turn.collect())
    async with asyncio.timeout(60):
        await service.called.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await service.given_up.wait()
    assert settled == [ticket]
    assert not [task for task in asyncio.all_tasks() if "TurnTools" in getattr(task.get_coro(), "__qualname__", "")]


async def test_a_turn_that_nobody_reads_lets_go_of_all(
    app: FastAPI, engine: ScriptedEngine, model: TextModel, ticket: Ticket, settled: list[Ticket]
) -> None:
    engine.script = lambda request, index: [[40], 1000.0]
    turn = await begun(app, ticket, "weather")
    ticket.leave()
    await turn.aclose()
    assert settled == [ticket]
    assert engine.streams == {}


async def test_a_call_that_does_no_harm_begins_while_the_model_writes_on(
    app: FastAPI, engine: ScriptedEngine, model: TextModel, ticket: Ticket, service: Service
) -> None:
    ids = model.tokenizer.encode(WEATHER, add_special=False)
    # The model goes on when the tool has been called; were that to wait for its end, neither would go on.
    waits = says_in_turn(model, "Done.")
    engine.script = lambda request, index: (
        [ids, service.called, [40]] if len(engine.requests) == 1 else waits(request, index)
    )
    turn = await begun(app, ticket, "weather")
    async with asyncio.timeout(60):
        await turn.collect()
    (made,) = turn.calls
    assert made.status == "completed"
    assert len(service.calls) == 1


async def test_a_call_that_does_something_waits_for_the_whole_answer(
    app: FastAPI, engine: ScriptedEngine, model: TextModel, ticket: Ticket, service: Service
) -> None:
    ids = model.tokenizer.encode(call("order", city="Oslo"), add_special=False)
    told, go_on = asyncio.Event(), asyncio.Event()
    done = says_in_turn(model, "Done.")
    engine.script = lambda request, index: [ids, go_on, [40]] if len(engine.requests) == 1 else done(request, index)
    turn = await begun(app, ticket, "order")

    async def read() -> None:
        async for _ in turn:
            if turn.current_calls:
                told.set()

    reading = asyncio.create_task(read())
    async with asyncio.timeout(60):
        await told.wait()
        await asyncio.sleep(0.05)
        assert service.calls == []
        go_on.set()
        await reading
    assert len(service.calls) == 1
    await turn.aclose()


async def test_no_call_is_begun_when_the_time_of_the_answer_is_over(
    app: FastAPI, engine: ScriptedEngine, model: TextModel, ticket: Ticket, service: Service
) -> None:
    services: Services = app.state.services
    app.state.services = replace(services, settings=services.settings.model_copy(update={"max_tool_turn_s": 1e-9}))
    engine.script = says_in_turn(model, WEATHER, "Done.")
    turn = await begun(app, ticket, "weather")
    await turn.collect()
    (left,) = turn.calls
    assert left.error is not None
    assert (left.status, left.error.code) == ("incomplete", "max_tool_time")
    assert (turn.stop_reason, turn.finish) == ("max_tool_time", "max_tool_calls")
    assert service.calls == []


async def test_an_early_call_of_an_answer_that_is_cut_counts_for_nothing(
    app: FastAPI, engine: ScriptedEngine, model: TextModel, ticket: Ticket, service: Service
) -> None:
    ids = model.tokenizer.encode(WEATHER, add_special=False)
    engine.script = lambda request, index: [ids, service.called, 0.05, [40] * 500]
    turn = await begun(app, ticket, "weather")
    async with asyncio.timeout(60):
        await turn.collect()
    (made,) = turn.calls
    assert (turn.finish, made.status, made.output) == ("length", "incomplete", None)
    assert len(engine.requests) == 1
