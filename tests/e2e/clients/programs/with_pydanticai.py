"""Pydantic AI."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, Embedder, NativeOutput, PromptedOutput, ToolOutput, exceptions
from pydantic_ai.direct import model_request_batch
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.messages import ModelRequest, ThinkingPart
from pydantic_ai.models.batch import BatchRequest
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from tests.e2e.clients.programs import lines
from tests.e2e.clients.programs.harness import MODEL_MAX_TOKENS, QUESTION, SHORT_S, Matrix, Target, equal, failure
from tests.e2e.clients.programs.lines import ask

matrix = Matrix("pydantic-ai-slim")


class Person(BaseModel):
    """What `person` says."""

    name: str
    age: int


PERSON = Person(**lines.PERSON)
TOOLS = (lines.get_weather, lines.get_time)


def connect(target: Target, *, kind: Any = OpenAIChatModel, name: str = "", **options: Any) -> Any:
    """A model of the scripted server, without retries."""
    client = AsyncOpenAI(**{"base_url": target.url, "api_key": target.key, "max_retries": 0, **options})
    return kind(name or target.model, provider=OpenAICompatibleProvider("wye", openai_client=client))


def run(target: Target, prompt: str, *, agent: Any = None, model: Any = None, **settings: Any) -> Any:
    """The result of one run."""
    agent = Agent() if agent is None else agent
    return agent.run_sync(prompt, model=model or connect(target), model_settings=settings)


@matrix.check("chat")
def chat(target: Target) -> None:
    result = run(target, ask("hello", size=3))
    equal(result.output, lines.HELLO)
    equal(result.response.usage.output_tokens, target.num_hello_tokens)
    equal(result.response.usage.cache_read_tokens, target.num_cached_tokens)
    equal(result.response.finish_reason, "stop")


@matrix.check("stream")
async def stream(target: Target) -> None:
    for size in (1, 2, 50):
        async with Agent(connect(target)).run_stream(ask("hello", size=size)) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        equal("".join(pieces), lines.HELLO)


@matrix.check("stream-usage")
async def stream_usage(target: Target) -> None:
    async with Agent(connect(target)).run_stream(ask("hello")) as result:
        equal(await result.get_output(), lines.HELLO)
        equal(result.response.usage.output_tokens, target.num_hello_tokens)


@matrix.check("async")
async def side_by_side(target: Target) -> None:
    agent = Agent(connect(target))
    results = await asyncio.gather(*(agent.run(ask("hello")) for _ in range(8)))
    equal([result.output for result in results], [lines.HELLO] * 8)


@matrix.check("history")
def history(target: Target) -> None:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        for options in ({"instructions": lines.INSTRUCTIONS}, {"system_prompt": lines.INSTRUCTIONS}):
            agent: Any = Agent(connect(target, kind=kind), **options)
            first = agent.run_sync(ask("hello"))
            equal(agent.run_sync(ask("obey"), message_history=first.all_messages()).output, lines.OBEYED)


matrix.lacks("Gives one choice only.", "choices")


@matrix.check("logprobs")
def logprobs(target: Target) -> None:
    details = run(target, ask("hello"), openai_logprobs=True, openai_top_logprobs=2).response.provider_details
    equal(b"".join(bytes(token["bytes"]) for token in details["logprobs"]).decode(), lines.HELLO)


@matrix.check("thinking")
async def thinking(target: Target) -> None:
    agent = Agent(connect(target))
    result = await agent.run(ask("think"))
    thoughts = [part.content for part in result.response.parts if isinstance(part, ThinkingPart)]
    equal((thoughts, result.output), ([lines.THOUGHT], lines.HELLO))
    async with agent.run_stream(ask("think")) as streamed:
        equal(await streamed.get_output(), lines.HELLO)
        thoughts = [part.content for part in streamed.response.parts if isinstance(part, ThinkingPart)]
        equal(thoughts, [lines.THOUGHT])


@matrix.check("tools")
def tools(target: Target) -> None:
    result = run(target, ask("weather"), agent=Agent(tools=TOOLS))
    equal(result.output, lines.FORECAST)
    equal(result.usage.tool_calls, 1)


@matrix.check("tools-stream")
async def tools_stream(target: Target) -> None:
    agent = Agent(connect(target), tools=TOOLS)
    for size in (1, 3, 200):
        async with agent.run_stream(ask("weather", size=size)) as result:
            equal(await result.get_output(), lines.FORECAST)
        equal(result.usage.tool_calls, 1)


@matrix.check("parallel-tools")
def parallel_tools(target: Target) -> None:
    result = run(target, ask("parallel"), agent=Agent(tools=TOOLS))
    equal(result.output, lines.BOTH)
    equal((result.usage.tool_calls, result.usage.requests), (2, 2))


@matrix.check("forced-tool")
def forced_tool(target: Target) -> None:
    equal(run(target, ask("person"), agent=Agent(output_type=ToolOutput(Person))).output, PERSON)


@matrix.check("structured")
def structured(target: Target) -> None:
    for output in (NativeOutput(Person), PromptedOutput(Person)):
        equal(run(target, ask("person"), agent=Agent(output_type=output)).output, PERSON)


@matrix.check("structured-stream")
async def structured_stream(target: Target) -> None:
    for output in (NativeOutput(Person), ToolOutput(Person)):
        agent: Any = Agent(connect(target), output_type=output)
        async with agent.run_stream(ask("person")) as result:
            equal(await result.get_output(), PERSON)


matrix.lacks("Speaks chats and responses only.", "completions")


@matrix.check("embeddings")
async def embeddings(target: Target) -> None:
    client = AsyncOpenAI(base_url=target.url, api_key=target.key)
    provider = OpenAICompatibleProvider("wye", openai_client=client)
    result = await Embedder(OpenAIEmbeddingModel(target.model, provider=provider)).embed_documents(lines.TEXTS)
    lines.check_embeddings(result.embeddings)


@matrix.check("batches")
async def batches(target: Target) -> None:
    client = AsyncOpenAI(base_url=target.url, api_key=target.key)
    provider = OpenAICompatibleProvider("wye", openai_client=client)
    model = OpenAIResponsesModel(target.model, provider=provider, profile={"openai_supports_batch_api": True})
    requests = [
        BatchRequest(custom_id=key, messages=[ModelRequest.user_text_prompt(prompt)])
        for key, prompt in lines.BATCH_CHATS.items()
    ]
    often = timedelta(seconds=0.2)
    answers: Any = await model_request_batch(model, requests, poll_interval=often, max_poll_interval=often)
    equal([answer.text for answer in answers], list(lines.BATCH_RESULTS.values()))


@matrix.check("responses")
def responses(target: Target) -> None:
    model = connect(target, kind=OpenAIResponsesModel)
    result = run(target, ask("think"), model=model)
    equal(result.output, lines.HELLO)
    equal(run(target, ask("person"), model=model, agent=Agent(output_type=NativeOutput(Person))).output, PERSON)


@matrix.check("responses-stream")
async def responses_stream(target: Target) -> None:
    async with Agent(connect(target, kind=OpenAIResponsesModel)).run_stream(ask("hello")) as result:
        equal(await result.get_output(), lines.HELLO)
        equal(result.response.usage.output_tokens, target.num_hello_tokens)


@matrix.check("responses-tools")
def responses_tools(target: Target) -> None:
    model = connect(target, kind=OpenAIResponsesModel)
    result = run(target, ask("parallel"), model=model, agent=Agent(tools=TOOLS))
    equal((result.output, result.usage.tool_calls), (lines.BOTH, 2))


@matrix.check("responses-state")
def responses_state(target: Target) -> None:
    model = connect(target, kind=OpenAIResponsesModel)
    first = run(target, ask("hello"), model=model)
    made = first.response.provider_response_id
    assert made.startswith("resp_")
    equal(run(target, ask("recall"), model=model, openai_previous_response_id=made).output, lines.RECALLED)
    equal(run(target, ask("recall"), model=model).output, lines.FORGOT)


matrix.lacks("Does not list models.", "models")


@matrix.check("bad-request")
def bad_request(target: Target) -> None:
    error = failure(exceptions.ModelHTTPError, lambda: run(target, ask("hello"), temperature=3))
    body: Any = error.body
    equal((error.status_code, body["param"]), (400, "temperature"))


@matrix.check("too-long")
def too_long(target: Target) -> None:
    failure(
        exceptions.ModelContextWindowExceededError,
        lambda: run(target, "many words " * 20_000 + ask("hello")),
    )


@matrix.check("wrong-key")
def wrong_key(target: Target) -> None:
    model = connect(target, api_key="wrong")
    failure(exceptions.ModelAuthenticationError, lambda: run(target, ask("hello"), model=model))


@matrix.check("unknown-model")
def unknown_model(target: Target) -> None:
    model = connect(target, name="no/such")
    failure(exceptions.ModelNotFoundError, lambda: run(target, ask("hello"), model=model))


@matrix.check("retries")
def retries(target: Target) -> None:
    failure(exceptions.ModelOverloadedError, lambda: run(target, ask("busy", times=1)))
    model = connect(target, max_retries=2)
    equal(run(target, ask("busy", times=1, other=1), model=model).output, lines.HELLO)


@matrix.check("server-error")
def server_error(target: Target) -> None:
    before = target.count_requests(500)
    model = connect(target, max_retries=2)
    failure(exceptions.ModelServerError, lambda: run(target, ask("crash"), model=model))
    equal(target.count_requests(500), before + 1)


@matrix.check("broken-stream")
async def broken_stream(target: Target) -> None:
    try:
        async with Agent(connect(target)).run_stream(ask("broken")) as result:
            output = await result.get_output()
    except exceptions.ModelAPIError:
        return
    raise AssertionError(f"no error, but {output!r}")


@matrix.check("timeout")
def timeout(target: Target) -> None:
    failure(exceptions.ModelTimeoutError, lambda: run(target, ask("hang"), timeout=SHORT_S))
    target.wait_until_idle()


@matrix.check("abort")
async def abort(target: Target) -> None:
    async with Agent(connect(target)).run_stream(ask("endless"), model_settings={"max_tokens": 10_000}) as result:
        async for _ in result.stream_text(delta=True, debounce_by=None):
            break
    await asyncio.to_thread(target.wait_until_idle)  # the loop has to close the connection


matrix.lacks("Has no command line.", "command")


def real(target: Target) -> Any:
    """An agent of the real server's model."""
    provider = OpenAICompatibleProvider("wye", base_url=target.real_url or "", api_key="none")
    model = OpenAIChatModel(target.real_model, provider=provider)
    return Agent(model, model_settings={"temperature": 0, "max_tokens": MODEL_MAX_TOKENS})


@matrix.check("real-chat")
def real_chat(target: Target) -> None:
    assert "Paris" in real(target).run_sync(QUESTION).output


@matrix.check("real-stream")
async def real_stream(target: Target) -> None:
    async with real(target).run_stream(QUESTION) as result:
        assert "Paris" in await result.get_output()


if __name__ == "__main__":
    matrix.run()
