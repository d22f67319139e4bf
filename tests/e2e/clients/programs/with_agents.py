"""OpenAI's Agents SDK, over responses (its default) and over chats."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from agents import (
    Agent,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.e2e.clients.programs import lines
from tests.e2e.clients.programs.harness import MODEL_MAX_TOKENS, QUESTION, SHORT_S, Matrix, Target, equal
from tests.e2e.clients.programs.lines import ask

matrix = Matrix("openai-agents")
set_tracing_disabled(True)

TOOLS: Any = [function_tool(lines.get_weather), function_tool(lines.get_time)]


class Person(BaseModel):
    """What `person` says."""

    name: str
    age: int


PERSON = Person(**lines.PERSON)


def connect(target: Target, *, kind: Any = OpenAIChatCompletionsModel, name: str = "", **options: Any) -> Any:
    """A model of the scripted server, without retries."""
    client = AsyncOpenAI(**{"base_url": target.url, "api_key": target.key, "max_retries": 0, **options})
    return kind(name or target.model, client)


def agent(model: Any, settings: ModelSettings | None = None, **options: Any) -> Any:
    """An agent without instructions."""
    return Agent(name="tester", model=model, model_settings=settings or ModelSettings(), **options)


async def answer(runner: Any, prompt: Any, **options: Any) -> Any:
    """What a run comes to."""
    result = await Runner.run(runner, prompt, **options)
    return result.final_output


async def streamed(runner: Any, prompt: Any) -> tuple[Any, str]:
    """What a streamed run comes to, and the text of its events."""
    result = Runner.run_streamed(runner, prompt)
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    return result.final_output, "".join(pieces)


@matrix.check("chat")
async def chat(target: Target) -> None:
    result = await Runner.run(agent(connect(target)), ask("hello", size=3))
    equal(result.final_output, lines.HELLO)
    usage = result.context_wrapper.usage
    equal(usage.output_tokens, target.num_hello_tokens)
    equal(usage.input_tokens_details.cached_tokens, target.num_cached_tokens)


@matrix.check("stream")
async def stream(target: Target) -> None:
    for size in (1, 2, 50):
        equal(await streamed(agent(connect(target)), ask("hello", size=size)), (lines.HELLO, lines.HELLO))


@matrix.check("stream-usage")
async def stream_usage(target: Target) -> None:
    result = Runner.run_streamed(agent(connect(target), ModelSettings(include_usage=True)), ask("hello"))
    async for _ in result.stream_events():
        pass
    equal(result.context_wrapper.usage.output_tokens, target.num_hello_tokens)


@matrix.check("async")
async def side_by_side(target: Target) -> None:
    runner = agent(connect(target))
    equal(await asyncio.gather(*(answer(runner, ask("hello")) for _ in range(8))), [lines.HELLO] * 8)


@matrix.check("history")
async def history(target: Target) -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        runner = agent(connect(target, kind=kind), instructions=lines.INSTRUCTIONS)
        first = await Runner.run(runner, ask("hello"))
        turns = [*first.to_input_list(), {"role": "user", "content": ask("obey")}]
        equal(await answer(runner, turns), lines.OBEYED)


matrix.lacks("Gives one choice only.", "choices")


@matrix.check("logprobs")
async def logprobs(target: Target) -> None:
    runner = agent(connect(target), ModelSettings(top_logprobs=2))
    result = await Runner.run(runner, ask("hello"))
    found = result.raw_responses[0].output[0].content[0].logprobs
    equal(b"".join(bytes(token.bytes) for token in found).decode(), lines.HELLO)


@matrix.check("thinking")
async def thinking(target: Target) -> None:
    result = await Runner.run(agent(connect(target)), ask("think"))
    equal(result.final_output, lines.HELLO)
    reasoning = result.raw_responses[0].output[0]
    equal((reasoning.type, reasoning.summary[0].text), ("reasoning", lines.THOUGHT))


@matrix.check("tools")
async def tools(target: Target) -> None:
    equal(await answer(agent(connect(target), tools=TOOLS), ask("weather")), lines.FORECAST)


@matrix.check("tools-stream")
async def tools_stream(target: Target) -> None:
    for size in (1, 3, 200):
        runner = agent(connect(target), tools=TOOLS)
        equal(await streamed(runner, ask("weather", size=size)), (lines.FORECAST, lines.FORECAST))


@matrix.check("parallel-tools")
async def parallel_tools(target: Target) -> None:
    result = await Runner.run(agent(connect(target), tools=TOOLS), ask("parallel"))
    equal((result.final_output, len(result.raw_responses)), (lines.BOTH, 2))


@matrix.check("forced-tool")
async def forced_tool(target: Target) -> None:
    for choice in ("required", "get_weather"):
        # The SDK lets go of the choice after the first call.
        runner = agent(connect(target), ModelSettings(tool_choice=choice), tools=TOOLS)
        equal(await answer(runner, ask("weather")), lines.FORECAST)


@matrix.check("structured")
async def structured(target: Target) -> None:
    equal(await answer(agent(connect(target), output_type=Person), ask("person")), PERSON)


@matrix.check("structured-stream")
async def structured_stream(target: Target) -> None:
    found, _ = await streamed(agent(connect(target), output_type=Person), ask("person"))
    equal(found, PERSON)


matrix.lacks("Speaks chats and responses only.", "completions", "embeddings", "batches")


@matrix.check("responses")
async def responses(target: Target) -> None:
    model = connect(target, kind=OpenAIResponsesModel)
    equal(await answer(agent(model), ask("think")), lines.HELLO)
    equal(await answer(agent(model, output_type=Person), ask("person")), PERSON)


@matrix.check("responses-stream")
async def responses_stream(target: Target) -> None:
    model = connect(target, kind=OpenAIResponsesModel)
    equal(await streamed(agent(model), ask("hello")), (lines.HELLO, lines.HELLO))


@matrix.check("responses-tools")
async def responses_tools(target: Target) -> None:
    runner = agent(connect(target, kind=OpenAIResponsesModel), tools=TOOLS)
    equal(await answer(runner, ask("parallel")), lines.BOTH)
    found, _ = await streamed(runner, ask("weather"))
    equal(found, lines.FORECAST)


@matrix.check("responses-state")
async def responses_state(target: Target) -> None:
    runner = agent(connect(target, kind=OpenAIResponsesModel))
    first = await Runner.run(runner, ask("hello"))
    equal(await answer(runner, ask("recall"), previous_response_id=first.last_response_id), lines.RECALLED)
    equal(await answer(runner, ask("recall")), lines.FORGOT)


matrix.lacks("Does not list models.", "models")


async def failing(kind: Any, runner: Any, prompt: str) -> Any:
    """The error that a run ends with, which must be of a kind."""
    try:
        found = await answer(runner, prompt)
    except kind as error:
        return error
    raise AssertionError(f"no error, but {found!r}")


@matrix.check("bad-request")
async def bad_request(target: Target) -> None:
    runner = agent(connect(target), ModelSettings(temperature=3))
    equal((await failing(openai.BadRequestError, runner, ask("hello"))).param, "temperature")


@matrix.check("too-long")
async def too_long(target: Target) -> None:
    error = await failing(openai.BadRequestError, agent(connect(target)), "many words " * 20_000 + ask("hello"))
    equal(error.code, "context_length_exceeded")


@matrix.check("wrong-key")
async def wrong_key(target: Target) -> None:
    await failing(openai.AuthenticationError, agent(connect(target, api_key="wrong")), ask("hello"))


@matrix.check("unknown-model")
async def unknown_model(target: Target) -> None:
    await failing(openai.NotFoundError, agent(connect(target, name="no/such")), ask("hello"))


@matrix.check("retries")
async def retries(target: Target) -> None:
    await failing(openai.InternalServerError, agent(connect(target)), ask("busy", times=1))
    equal(await answer(agent(connect(target, max_retries=2)), ask("busy", times=1, other=1)), lines.HELLO)


@matrix.check("server-error")
async def server_error(target: Target) -> None:
    before = target.count_requests(500)
    await failing(openai.InternalServerError, agent(connect(target, max_retries=2)), ask("crash"))
    equal(target.count_requests(500), before + 1)


@matrix.check("broken-stream")
async def broken_stream(target: Target) -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        try:
            found = await streamed(agent(connect(target, kind=kind)), ask("broken"))
        except (openai.APIError, ModelBehaviorError):
            continue
        raise AssertionError(f"no error, but {found!r}")


@matrix.check("timeout")
async def timeout(target: Target) -> None:
    await failing(openai.APITimeoutError, agent(connect(target, timeout=SHORT_S)), ask("hang"))
    target.wait_until_idle()


@matrix.check("abort")
async def abort(target: Target) -> None:
    runner = agent(connect(target), ModelSettings(max_tokens=10_000))
    result = Runner.run_streamed(runner, ask("endless"), run_config=RunConfig())
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            break
    result.cancel()
    async for _ in result.stream_events():
        pass
    await asyncio.to_thread(target.wait_until_idle)


matrix.lacks("Has no command line.", "command")


def real(target: Target, kind: Any) -> Any:
    """An agent of the real server's model."""
    model = kind(target.real_model, AsyncOpenAI(base_url=target.real_url, api_key="none"))
    return agent(model, ModelSettings(temperature=0, max_tokens=MODEL_MAX_TOKENS))


@matrix.check("real-chat")
async def real_chat(target: Target) -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        assert "Paris" in await answer(real(target, kind), QUESTION)


@matrix.check("real-stream")
async def real_stream(target: Target) -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        _, said = await streamed(real(target, kind), QUESTION)
        assert "Paris" in said


if __name__ == "__main__":
    matrix.run()
