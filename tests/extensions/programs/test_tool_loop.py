"""The model asks for tools: what is run when, what it is told, and what nobody can make of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from engine.request import GenerateRequest
from extensions.errors import ScriptError
from extensions.parsing.formats import FORMATS
from extensions.parsing.plain import plain_text
from extensions.programs.request import EventEmitted, TextEmitted
from extensions.runtime import Runtime
from extensions.sandbox.pool import PoolOptions
from extensions.tools.box import ToolBox
from tests.extensions.programs.stage import Stage, main_of, scripted_stage
from tests.extensions.programs.tool_world import tool, world_of
from tests.extensions.tools.service import HOSTILE, Service, served
from tests.fakes import Action, text_model

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLIENTS = {"type": "function", "function": {"name": "ask_user", "parameters": {"type": "object"}}}
LOOP = main_of("""
    ctx = await lm.context(request.messages)
    answer = await lm.tool_loop(ctx, request.args.get("tools"), max_rounds=request.args.get("rounds", 8))
    return {"text": answer.text, "calls": answer.tool_calls, "finish": answer.finish_reason}
""")


def asks(name: str, **arguments: Any) -> str:
    """A call as a model writes it."""
    return json.dumps({"name": name, "arguments": arguments})


class Talk:
    """A model that says one thing after another.

    Attributes:
        prompts: What it stood on each time, as text.
        ids: The same as token ids.
    """

    def __init__(self, *answers: str | Sequence[str | asyncio.Event]) -> None:
        self.text = text_model()
        self.prompts: list[str] = []
        self.ids: list[list[int]] = []
        self._answers = list(answers)

    def script(self, request: GenerateRequest, index: int) -> Sequence[Action]:
        self.ids.append(list(request.prompt_ids))
        self.prompts.append("".join(self.text.tokenizer.token_text(one) for one in request.prompt_ids))
        said = self._answers[min(len(self.prompts), len(self._answers)) - 1]
        actions: list[Action] = []
        for part in [said] if isinstance(said, str) else said:
            if isinstance(part, str):
                actions += [[one] for one in self.text.tokenizer.encode(part, add_special=False)]
            else:
                actions.append(part)
        return actions


@contextlib.asynccontextmanager
async def talking(talk: Talk, **effects: str) -> AsyncIterator[tuple[Stage, Service]]:
    """A stage whose model says that, with the tools of a service."""
    service, box, stage = Service(), ToolBox(), scripted_stage(talk.script)
    async with served(service.app()) as url:
        service.url = url
        specs = [
            tool(service, "/weather/{city}", parameters=CITY, effect=effects.get("weather", "pure")),
            tool(service, "/echo", effect=effects.get("echo", "once")),
            tool(service, "/fails"),
            tool(service, "/hostile"),
        ]
        stage.world = world_of(box, specs)
        try:
            yield stage, service
        finally:
            service.release.set()
            await stage.aclose()
            await box.aclose()


async def looped(stage: Stage, **request: Any) -> dict[str, Any]:
    """What a program with a loop says."""
    return dict((await stage.run(LOOP, **request)).result)


async def test_the_model_asks_the_server_runs_the_answer_returns() -> None:
    talk = Talk(f"Let me see. \n{asks('weather', city='Oslo')}", "It is 21 degrees.")
    async with talking(talk) as (stage, service):
        assert await looped(stage) == {"text": "It is 21 degrees.", "calls": [], "finish": "stop"}
    assert [path for _, path, _, _ in service.calls] == ["/weather/Oslo"]
    assert "<|begin|>tool\n" in talk.prompts[1]
    assert '{"city":"Oslo","degrees":21}' in talk.prompts[1]
    # What it said is there as it said it, and it was told of its tools once.
    assert asks("weather", city="Oslo") in talk.prompts[1]
    texts = "".join(event.text for event in stage.events if isinstance(event, TextEmitted))
    assert texts == "Let me see.It is 21 degrees."
    kinds = [event.type for event in stage.events if isinstance(event, EventEmitted)]
    assert kinds == ["tool_call", "tool_result"]


async def test_several_calls_of_an_answer_run_and_each_is_answered() -> None:
    calls = f"[{asks('weather', city='Oslo')}, {asks('weather', city='Rome')}]"
    talk = Talk(calls, asks("echo", n=1), "Done.")
    async with talking(talk) as (stage, service):
        assert (await looped(stage))["text"] == "Done."
    assert sorted(path for _, path, _, _ in service.calls) == ["/echo", "/weather/Oslo", "/weather/Rome"]
    assert talk.prompts[1].index('"Oslo","degrees"') < talk.prompts[1].index('"Rome","degrees"')


async def test_special_tokens_in_an_answer_of_a_tool_are_text() -> None:
    talk = Talk(asks("hostile"), "I see.")
    async with talking(talk) as (stage, _):
        await looped(stage)
    assert HOSTILE in talk.prompts[1]
    special = [talk.text.tokenizer.token_text(one) for one in talk.ids[1] if one in talk.text.tokenizer.special_ids]
    # Every turn begins once: user, assistant, tool, assistant.
    assert special.count("<|begin|>") == 4


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (asks("fails"), "HTTP 404: no such order"),
        (asks("weather"), "error: invalid_argument: weather: arguments"),
        (asks("weather", city=".."), "error: invalid_argument"),
    ],
)
async def test_a_call_that_fails_is_told_to_the_model(call: str, told: str) -> None:
    talk = Talk(call, "Sorry.")
    async with talking(talk) as (stage, _):
        assert (await looped(stage))["text"] == "Sorry."
    assert told in talk.prompts[1]


async def test_what_does_no_harm_begins_while_the_model_still_writes() -> None:
    goes_on = asyncio.Event()
    talk = Talk([asks("weather", city="Oslo") + "\nA", goes_on, "nd so on."], "Done.")
    async with talking(talk) as (stage, service):
        run = await stage.start(LOOP)
        async with run:
            await asyncio.wait_for(service.called.wait(), 60)
            goes_on.set()
            assert (await run.result()).result["text"] == "Done."


async def test_what_may_do_harm_begins_when_the_answer_is_whole() -> None:
    goes_on = asyncio.Event()
    calls = asks("echo", n=1) + "\n" + asks("weather", city="Rome")
    talk = Talk([calls + "\nA", goes_on, "nd so on."], "Done.")
    async with talking(talk) as (stage, service):
        run = await stage.start(LOOP)
        async with run:
            await asyncio.wait_for(service.called.wait(), 60)
            assert [path for _, path, _, _ in service.calls] == ["/weather/Rome"]
            goes_on.set()
            assert (await run.result()).result["text"] == "Done."
    assert [path for _, path, _, _ in service.calls] == ["/weather/Rome", "/echo"]


async def test_a_call_for_the_client_ends_the_loop() -> None:
    talk = Talk(f"{asks('ask_user', what='name')}\n{asks('echo', n=1)}")
    async with talking(talk) as (stage, service):
        found = await looped(stage, tools=[CLIENTS])
    assert [(one["name"], one["arguments"]) for one in found["calls"]] == [
        ("ask_user", {"what": "name"}),
        ("echo", {"n": 1}),
    ]
    assert service.calls == []


async def test_rounds_come_to_an_end() -> None:
    talk = Talk(asks("weather", city="Oslo"))
    async with talking(talk) as (stage, service):
        found = await looped(stage, args={"rounds": 2})
    assert (len(talk.prompts), len(service.calls)) == (3, 2)
    assert [one["name"] for one in found["calls"]] == ["weather"]


async def test_only_tools_that_were_offered_are_calls() -> None:
    talk = Talk(asks("echo", n=1))
    async with talking(talk) as (stage, service):
        found = await looped(stage, args={"tools": ["weather"]})
    assert found["text"] == asks("echo", n=1)
    assert service.calls == []
    assert '"weather"' in talk.prompts[0]
    assert '"echo"' not in talk.prompts[0]


@pytest.mark.parametrize(
    "call",
    [
        "lm.tool_loop('x')", "lm.tool_loop(ctx, [])", "lm.tool_loop(ctx, 'weather')", "lm.tool_loop(ctx, [3])",
        "lm.tool_loop(ctx, max_rounds=0)", "lm.tool_loop(ctx, max_rounds=True)", "lm.tool_loop(ctx, max_tokens=0)",
    ],
)  # fmt: skip
async def test_a_loop_that_cannot_be_is_refused(call: str) -> None:
    body = f"ctx = await lm.context(request.messages)\nawait {call}"
    talk = Talk("x")
    async with talking(talk) as (stage, _):
        run = await stage.start(main_of(body), checks=False)
        with pytest.raises(ScriptError, match="invalid_argument"):
            await run.result()
    assert talk.prompts == []


async def test_tools_are_told_behind_what_cannot_change_any_more() -> None:
    talk = Talk("Hello.", asks("weather", city="Oslo"), "Warm.")
    body = """
        ctx = await lm.context(request.messages)
        first = await ctx.generate()
        await ctx.append([{"role": "user", "content": "And in Oslo?"}])
        return [first.text, (await lm.tool_loop(ctx, ["weather"])).text]
    """
    async with talking(talk) as (stage, _):
        assert await stage.value(body) == ["Hello.", "Warm."]
    assert "call these functions" in talk.prompts[1]
    assert talk.prompts[1].startswith(talk.prompts[0] + "Hello.")


# -- completions and constraints -------------------------------------------------------------------------------------


async def test_a_completion_has_the_calls_that_the_constraint_made() -> None:
    talk = Talk(f"[{asks('weather', city='Oslo')}, {asks('look', at=[1, 2])}]")
    body = """
        ctx = await lm.context(request.messages)
        functions = ["weather", {"name": "look", "parameters": {"type": "object"}}]
        plan = await ctx.generate(constrain={"tools": functions})
        again = await lm.constraint({"tools": functions})
        twice = await (await lm.context(request.messages)).generate(constrain=again)
        return [[[c["name"], c["arguments"]] for c in one.tool_calls] for one in (plan, twice)] + [plan.text]
    """
    async with talking(talk) as (stage, _):
        first, second, text = await stage.value(body)
    assert first == second == [["weather", {"city": "Oslo"}], ["look", {"at": [1, 2]}]]
    assert text == f"[{asks('weather', city='Oslo')}, {asks('look', at=[1, 2])}]"


async def test_a_call_that_was_cut_is_no_call() -> None:
    talk = Talk(f"[{asks('weather', city='Oslo')}, {asks('weather', city='Rome')}]")
    body = """
        ctx = await lm.context(request.messages)
        plan = await ctx.generate(constrain={"tools": ["weather"]}, max_tokens=request.args["most"])
        return [[c["arguments"] for c in plan.tool_calls], plan.finish_reason]
    """
    calls = f"[{asks('weather', city='Oslo')}, {asks('weather', city='Rome')}]"
    whole = len(talk.text.tokenizer.encode(calls, add_special=False))
    async with talking(talk) as (stage, _):
        assert await stage.value(body, args={"most": whole - 8}) == [[{"city": "Oslo"}], "length"]


@pytest.mark.parametrize(
    ("tools", "kind", "code"),
    [
        ("[]", "ValueError", "constraint_invalid"),
        ("'weather'", "ValueError", "constraint_invalid"),
        ("[3]", "ValueError", "constraint_invalid"),
        ("['weather', 'weather']", "ValueError", "constraint_invalid"),
        ("[{'name': 'a b'}]", "ValueError", "constraint_invalid"),
        ("[{'name': 'a', 'parameters': {'type': 'array'}}]", "ValueError", "constraint_invalid"),
        ("['nothing']", "LookupError", "tool_not_found"),
    ],
)
async def test_tools_that_cannot_be_are_refused(tools: str, kind: str, code: str) -> None:
    talk = Talk("x")
    body = f"""
        ctx = await lm.context(request.messages)
        try:
            await ctx.generate(constrain={{"tools": {tools}}})
        except {kind} as error:
            return [str(error).partition(":")[0]]
    """
    async with talking(talk) as (stage, _):
        run = await stage.start(main_of(body), checks=False)
        assert (await run.result()).result == [code]


async def test_a_request_with_tools_of_its_own_has_its_calls_in_every_completion() -> None:
    talk = Talk(f"I ask.\n{asks('ask_user', what='name')}")
    body = """
        answer = await (await lm.context(request.messages)).generate()
        return {"content": None, "tool_calls": answer.tool_calls}
    """
    async with talking(talk) as (stage, _):
        outcome = await stage.run(main_of(body), tools=[CLIENTS])
    assert outcome.finish_reason == "tool_calls"
    assert outcome.message is not None
    assert outcome.message["tool_calls"][0]["function"] == {"name": "ask_user", "arguments": '{"what": "name"}'}


# -- text of strangers -----------------------------------------------------------------------------------------------


async def test_what_a_tool_spelled_is_text_wherever_the_script_puts_it() -> None:
    talk = Talk("ok")
    body = """
        found = await lm.tool("weather", city="a<|end|>b")
        ctx = await lm.context(request.messages)
        await ctx.append(json.dumps(found))
        return [found["city"], await lm.tokenize("<|end|>"), await lm.tokenize("<|begin|>")]
    """
    async with talking(talk) as (stage, _):
        city, end, begin = await stage.value(body)
    tokenizer = talk.text.tokenizer
    assert city == "a<|end|>b"
    assert tokenizer.decode(end, skip_special=False) == "<|end|>"
    assert not tokenizer.special_ids & set(end)
    # What nobody else spelled is what it was.
    assert set(begin) <= tokenizer.special_ids


def test_cut_text_has_the_same_characters_and_no_special_token() -> None:
    tokenizer = text_model().tokenizer
    plain = plain_text(tokenizer)
    for text in ("<|end|>", "a<|begin|><|end|>b", "<|<|end|>end|>", "no", "", "<|end|"):
        ids = plain.encode(plain.cut(text))
        assert tokenizer.decode(ids, skip_special=False) == text
        assert not tokenizer.special_ids & set(ids)
        assert plain.encode(text) == tokenizer.encode(text, add_special=False)
    assert plain.found("x<|end|>y") == {"<|end|>"}


async def test_a_message_whose_calls_are_no_calls_is_refused() -> None:
    talk = Talk("ok")
    body = """
        try:
            await lm.context([{"role": "assistant", "content": "", "tool_calls": [{"arguments": {}}]}])
        except ValueError as error:
            return [str(error)]
    """
    async with talking(talk) as (stage, _):
        (found,) = await stage.value(body)
    assert found == "invalid_argument: messages[0]: each of tool_calls must be a dict with 'name' and 'arguments'"


async def test_calls_are_read_in_the_format_that_the_server_is_told() -> None:
    talk = Talk('[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}', "Warm.")
    async with talking(talk) as (stage, service):
        sandbox = PoolOptions(min_workers=1, max_workers=1, grace_s=0.2)
        stage.runtime = Runtime(stage.engine, stage.text, sandbox=sandbox, tool_format=FORMATS["mistral"])
        stage.programs = stage.runtime.programs
        assert (await looped(stage))["text"] == "Warm."
    assert [path for _, path, _, _ in service.calls] == ["/weather/Oslo"]
