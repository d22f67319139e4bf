"""Running a program: what it is given, what it answers, what of it is streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import EngineStopped, OutOfPages, QueueFull
from extensions.errors import ArgumentsInvalid, RunCancelled, ScriptError
from extensions.programs.events import MAX_WAITING
from extensions.programs.request import EventEmitted, TextEmitted
from tests.extensions.programs.stage import ANSWER, Stage, main_of, scripted_stage, until
from tests.fakes import ScriptedEngine


async def test_text_that_main_returns_is_the_content(stage: Stage) -> None:
    outcome = await stage.run(main_of("return 'hello'"))
    assert (outcome.content, outcome.message, outcome.result) == ("hello", None, None)
    assert stage.events == [TextEmitted("hello")]


async def test_a_message_that_main_returns_is_taken_apart(stage: Stage) -> None:
    outcome = await stage.run(
        main_of("""
            return {"content": "Let me look.", "reasoning_content": "hm",
                    "tool_calls": [{"name": "look", "arguments": {"at": 1}}]}
        """)
    )
    assert outcome.content == "Let me look."
    assert outcome.finish_reason == "tool_calls"
    assert outcome.message is not None
    call = outcome.message["tool_calls"][0]
    assert call["function"] == {"name": "look", "arguments": '{"at": 1}'}
    assert call["id"].startswith("call_")
    assert outcome.message["reasoning_content"] == "hm"


@pytest.mark.parametrize("value", ["None", "3", "[1, 'a', None]", "{'a': {'b': 1.5}}", "True", "{}"])
async def test_any_other_value_is_the_result(stage: Stage, value: str) -> None:
    outcome = await stage.run(main_of(f"return {value}"))
    assert (outcome.content, outcome.result) == (None, eval(value))


async def test_tuples_with_names_that_main_returns_are_lists(stage: Stage) -> None:
    found = await stage.value(
        """
        ctx = await lm.context(request.messages)
        answer = await ctx.generate(max_tokens=3, logprobs=1)
        return {"usage": answer.usage, "tokens": [(one.token, one) for one in answer.logprobs], "pair": (1, {"a": ()})}
        """
    )
    assert found["usage"][2] == 3
    assert [len(pair) for pair in found["tokens"]] == [2, 2, 2]
    assert all(token == one[0] for token, one in found["tokens"])
    assert found["pair"] == [1, {"a": []}]


async def test_text_emitted_while_it_was_made_is_not_sent_twice(stage: Stage) -> None:
    outcome = await stage.run(
        main_of("""
            ctx = await lm.context(request.messages)
            return (await ctx.generate(emit=True)).text
        """)
    )
    assert len(stage.events) > 3
    assert "".join(event.text for event in stage.events if isinstance(event, TextEmitted)) == ANSWER
    assert outcome.content == ANSWER


@pytest.mark.parametrize(
    ("emitted", "returned", "content"),
    [
        (["a", "b"], "abc", "abc"),
        (["a", "b"], "b", "ab"),
        (["a ", "b "], "a b", "a b "),
        (["so: "], "42", "so: 42"),
        (["x"], "", "x"),
        ([], "", ""),
    ],
)
async def test_what_is_streamed_is_the_content_of_the_answer(
    stage: Stage, emitted: list[str], returned: str, content: str
) -> None:
    lines = [f"await lm.emit({text!r})" for text in emitted]
    outcome = await stage.run(main_of("\n".join([*lines, f"return {returned!r}"])))
    streamed = "".join(event.text for event in stage.events if isinstance(event, TextEmitted))
    assert outcome.content == streamed == content


async def test_events_of_the_script_come_in_order_with_its_text(stage: Stage) -> None:
    await stage.run(
        main_of("""
            await lm.emit("a")
            await lm.emit_event("progress", {"done": 1})
            await lm.emit("b")
        """)
    )
    assert stage.events == [TextEmitted("a"), EventEmitted("progress", {"done": 1}), TextEmitted("b")]


async def test_what_it_prints_is_logged(stage: Stage) -> None:
    outcome = await stage.run(main_of("print('one', 2)\nprint('three')"))
    assert outcome.logs == stage.printed == "one 2\nthree\n"


async def test_it_sees_the_request(stage: Stage) -> None:
    seen = await stage.value(
        "return [request.messages, request.prompt, request.model, request.params, request.tools, request.args, "
        "request.stream, request.id]",
        prompt=[1, 2],
        params={"max_tokens": 5},
        tools=[{"type": "function", "function": {"name": "f"}}],
        args={"x": [1]},
        stream=True,
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [{"role": "user", "content": "Name a river."}]
    assert seen == [messages, [1, 2], "tiny", {"max_tokens": 5}, tools, {"x": [1]}, True, "run-1"]


async def test_it_sees_the_model(stage: Stage) -> None:
    seen = await stage.value(
        """
        model = lm.model
        await model.require("contexts")
        try:
            await model.require("teleportation")
        except RuntimeError as error:
            return [model.name, model.vocab_size, model.max_tokens, model.page_tokens, str(error)[:18]]
        """
    )
    info = stage.engine.info
    assert seen == ["tiny", info.vocab_size, info.limit_tokens, 16, "capability_missing"]


async def test_arguments_have_the_defaults_of_the_schema(stage: Stage) -> None:
    header = (
        'EXTENSION = {"name": "x", "params": {"type": "object", "additionalProperties": False, "properties": '
        '{"n": {"type": "integer", "maximum": 9, "default": 4}}}}\n'
    )
    source = header + main_of("return [request.args['n']]")
    assert (await stage.run(source)).result == [4]
    assert (await stage.run(source, args={"n": 7})).result == [7]
    with pytest.raises(ArgumentsInvalid, match=r"args\.n: 10 is greater than the maximum of 9") as caught:
        await stage.run(source, args={"n": 10})
    assert caught.value.param == "args.n"
    with pytest.raises(ArgumentsInvalid, match="'m' was unexpected"):
        await stage.run(source, args={"m": 1})


async def test_modules_are_there_without_an_import(stage: Stage) -> None:
    assert await stage.value("return [json.loads('1'), math.floor(1.5), bool(re.match('a', 'ab'))]") == [1, 1, True]


async def test_numbers_and_time_of_the_world(stage: Stage) -> None:
    seen = await stage.value(
        """
        start = lm.now()
        await lm.sleep(0.05)
        return [lm.now() - start >= 0.05, 0.0 <= lm.random() < 1.0, start > 1.6e9]
        """
    )
    assert seen == [True, True, True]


async def test_text_to_tokens_and_back(stage: Stage) -> None:
    assert await stage.value("return [await lm.decode(await lm.tokenize('hello wörld'))]") == ["hello wörld"]


async def test_an_uncaught_exception_tells_its_place_in_the_script(stage: Stage) -> None:
    source = (
        "def deep(x):\n    return 1 / x\n\n\nasync def main(request, lm):\n    await lm.tokenize('x')\n    deep(0)\n"
    )
    with pytest.raises(ScriptError) as caught:
        await stage.run(source)
    error = caught.value
    assert (error.kind, error.reason, error.code) == ("ZeroDivisionError", "division by zero", "extension_error")
    assert [(frame.line, frame.function) for frame in error.frames] == [(7, "main"), (2, "deep")]
    assert error.traceback.splitlines()[1:4] == [
        '  File "main.py", line 7, in main',
        "    deep(0)",
        '  File "main.py", line 2, in deep',
    ]
    assert error.cause is None


@pytest.mark.parametrize("raised", ["ValueError(1)", "KeyError(None)", "RuntimeError('a', 'b')"])
async def test_an_exception_with_other_arguments_than_one_text_is_told_what_it_may_have(
    stage: Stage, raised: str
) -> None:
    with pytest.raises(ScriptError, match="take no argument or one text") as caught:
        await stage.value(f"raise {raised}")
    assert (caught.value.kind, caught.value.code) == ("TypeError", "extension_error")


async def test_an_error_of_the_server_is_typed_again_when_nobody_catches_it(stage: Stage) -> None:
    with pytest.raises(ScriptError) as caught:
        await stage.run(main_of("ctx = await lm.context('x')\nawait ctx.generate(temperature=7.0)"))
    error = caught.value
    assert (error.kind, error.code) == ("ValueError", "invalid_argument")
    assert "temperature must be between 0.0 and 2.0" in str(error.cause)
    assert error.frames[-1].line == 3


@pytest.mark.parametrize(
    ("refusal", "seen"),
    [
        (OutOfPages(5, 2), "MemoryError kv_exhausted: needs 5 KV pages, 2 are free"),
        (QueueFull(9), "RuntimeError server_busy: 9 requests wait already; try again later"),
    ],
)
async def test_a_refusal_of_the_engine_can_be_caught(stage: Stage, refusal: Any, seen: str) -> None:
    assert isinstance(stage.engine, ScriptedEngine)
    stage.engine.refusal = refusal
    result = await stage.value(
        """
        ctx = await lm.context("x")
        try:
            await ctx.generate()
        except Exception as error:
            return [type(error).__name__ + " " + str(error)]
        """
    )
    assert result == [seen]


async def test_the_end_of_the_engine_ends_the_run_whatever_it_catches() -> None:
    text_stage = scripted_stage(lambda request, index: [asyncio.Event()])
    engine = text_stage.engine
    assert isinstance(engine, ScriptedEngine)
    run = await text_stage.start(
        main_of("""
            ctx = await lm.context("x")
            while True:
                try:
                    await ctx.generate()
                except BaseException:
                    pass
        """)
    )
    await until(lambda: bool(engine.streams))
    engine.die()
    with pytest.raises(EngineStopped):
        await run.result()
    engine.contexts.histories.clear()
    await text_stage.aclose()


async def test_closing_a_run_ends_its_work_at_once() -> None:
    held = scripted_stage(lambda request, index: [asyncio.Event()])
    engine = held.engine
    assert isinstance(engine, ScriptedEngine)
    run = await held.start(
        main_of("""
            ctx = await lm.context("x")
            branches = await ctx.fork(3)
            await asyncio.gather(*[branch.generate() for branch in branches])
        """)
    )
    await until(lambda: len(engine.streams) == 3)
    await run.aclose()
    held.check_rest()
    assert len(engine.aborted) == 3
    with pytest.raises(RunCancelled):
        await run.result()
    await held.aclose()


async def test_a_reader_that_is_cancelled_closes_the_run_with_its_block() -> None:
    held = scripted_stage(lambda request, index: [asyncio.Event()])
    reader = asyncio.ensure_future(held.run(main_of("ctx = await lm.context('x')\nawait ctx.generate()")))
    engine = held.engine
    assert isinstance(engine, ScriptedEngine)
    await until(lambda: bool(engine.streams))
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    held.check_rest()
    await held.aclose()


async def test_a_slow_reader_holds_back_only_its_own_script(stage: Stage) -> None:
    run = await stage.start(main_of("for i in range(600):\n    await lm.emit('x')"))
    await until(lambda: run.usage.output_bytes >= MAX_WAITING)
    program = await stage.programs.check(main_of("return 'other'"))
    assert program.name == ""
    assert run.usage.output_bytes <= MAX_WAITING + 1
    texts = [event.text async for event in run if isinstance(event, TextEmitted)]
    assert "".join(texts) == "x" * 600
    await run.aclose()


async def test_a_run_finds_nothing_of_one_before_it(stage: Stage) -> None:
    source = "seen: list[int]\n\n" + main_of("""
        global seen
        try:
            return seen
        except NameError:
            seen = [request.args["x"]]
            return [None, seen]
    """)
    outcomes = [await stage.run(source, args={"x": at}) for at in range(3)]
    assert [outcome.result[1] for outcome in outcomes] == [[0], [1], [2]]


async def test_programs_run_beside_each_other(stage: Stage) -> None:
    source = main_of("""
        await lm.sleep(0.01)
        return [request.args["x"]]
    """)
    runs = [await stage.start(source, args={"x": at}) for at in range(8)]
    outcomes = await asyncio.gather(*(run.result() for run in runs))
    assert [outcome.result for outcome in outcomes] == [[at] for at in range(8)]


async def test_usage_counts_the_work(stage: Stage) -> None:
    outcome = await stage.run(
        main_of("""
            ctx = await lm.context("some text to begin with")
            await ctx.prefill()
            branches = await ctx.fork(2)
            await asyncio.gather(*[branch.generate(max_tokens=4) for branch in branches])
        """)
    )
    usage = outcome.usage
    length = len(stage.text.tokenizer.encode("some text to begin with", add_special=True))
    assert usage.num_prompt_tokens == length
    assert usage.num_completion_tokens == 8
    assert (usage.num_generations, usage.num_contexts, usage.max_contexts) == (2, 3, 3)
    assert usage.num_host_calls == 5
    assert usage.wall_s > 0
    assert usage.first_call_s is not None
    assert (outcome.exec_path, outcome.exec_reason) == ("fused", "")
