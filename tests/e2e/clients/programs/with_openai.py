"""The official Python library, version 1 or later."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
from openai import OpenAI
from pydantic import BaseModel

from tests.e2e.clients.programs import lines
from tests.e2e.clients.programs.harness import (
    CHECK_TIMEOUT_S,
    MODEL_MAX_TOKENS,
    QUESTION,
    SHORT_S,
    Matrix,
    Target,
    equal,
    failure,
)
from tests.e2e.clients.programs.lines import ask

matrix = Matrix("openai")
PROGRAM = Path(sys.executable).parent / "openai"

TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "get_weather", "strict": True, "parameters": lines.WEATHER_SCHEMA},
    },
    {"type": "function", "function": {"name": "get_time", "strict": True, "parameters": lines.TIME_SCHEMA}},
]
FLAT_TOOLS: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]


class Person(BaseModel):
    """What `person` says."""

    name: str
    age: int


PERSON = Person(**lines.PERSON)


def connect(target: Target, **options: Any) -> OpenAI:
    """A client of the scripted server, without retries."""
    return OpenAI(**{"base_url": target.url, "api_key": target.key, "max_retries": 0, **options})


def user(text: str) -> Any:
    """The messages of one turn."""
    return [{"role": "user", "content": text}]


@matrix.check("chat")
def chat(target: Target) -> None:
    answer = connect(target).chat.completions.create(model=target.model, messages=user(ask("hello", size=3)))
    equal(answer.choices[0].message.content, lines.HELLO)
    equal((answer.choices[0].message.role, answer.choices[0].finish_reason), ("assistant", "stop"))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    equal(answer.usage.completion_tokens, target.num_hello_tokens)
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + target.num_hello_tokens)
    equal(answer.usage.prompt_tokens_details.cached_tokens, target.num_cached_tokens)
    raw = connect(target).chat.completions.with_raw_response.create(model=target.model, messages=user(ask("hello")))
    assert raw.headers["x-request-id"]


@matrix.check("stream")
def stream(target: Target) -> None:
    for size in (1, 2, 50):
        chunks = list(
            connect(target).chat.completions.create(
                model=target.model, messages=user(ask("hello", size=size)), stream=True
            )
        )
        equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), lines.HELLO)
        equal([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason], ["stop"])
        equal({chunk.usage for chunk in chunks}, {None})


@matrix.check("stream-usage")
def stream_usage(target: Target) -> None:
    *chunks, last = connect(target).chat.completions.create(
        model=target.model, messages=user(ask("hello")), stream=True, stream_options={"include_usage": True}
    )
    equal(last.choices, [])
    assert last.usage is not None
    equal(last.usage.completion_tokens, target.num_hello_tokens)
    equal({chunk.usage for chunk in chunks}, {None})


@matrix.check("async")
async def side_by_side(target: Target) -> None:
    async with openai.AsyncOpenAI(base_url=target.url, api_key=target.key, max_retries=0) as client:

        async def streamed() -> str:
            chunks = await client.chat.completions.create(model=target.model, messages=user(ask("hello")), stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        equal(await asyncio.gather(*(streamed() for _ in range(8))), [lines.HELLO] * 8)


@matrix.check("history")
def history(target: Target) -> None:
    client = connect(target)
    for role in ("system", "developer"):
        turns: Any = lines.history(role)
        answer = client.chat.completions.create(model=target.model, messages=turns)
        equal(answer.choices[0].message.content, lines.OBEYED)
    turns = [*lines.history()[1:-1], *user(ask("obey"))]
    made = client.responses.create(model=target.model, input=turns, instructions=lines.INSTRUCTIONS)
    equal(made.output_text, lines.OBEYED)


@matrix.check("choices")
def choices(target: Target) -> None:
    answer = connect(target).chat.completions.create(model=target.model, messages=user(ask("choices")), n=3)
    said = [(choice.index, choice.message.content) for choice in answer.choices]
    equal(said, [(0, "Choice 0."), (1, "Choice 1."), (2, "Choice 2.")])
    texts = ["", "", ""]
    for chunk in connect(target).chat.completions.create(
        model=target.model, messages=user(ask("choices")), n=3, stream=True
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    equal(texts, ["Choice 0.", "Choice 1.", "Choice 2."])


@matrix.check("logprobs")
def logprobs(target: Target) -> None:
    asked: Any = {"model": target.model, "messages": user(ask("hello")), "logprobs": True, "top_logprobs": 2}
    found = connect(target).chat.completions.create(**asked).choices[0].logprobs
    assert found is not None
    assert found.content is not None
    equal(b"".join(bytes(token.bytes or ()) for token in found.content).decode(), lines.HELLO)
    assert all(len(token.top_logprobs) == 2 and token.logprob < 0 for token in found.content)
    streamed: list[Any] = []
    for chunk in connect(target).chat.completions.create(**asked, stream=True):
        given = chunk.choices[0].logprobs
        streamed += (given.content or []) if given is not None else []
    equal(streamed, found.content)


@matrix.check("thinking")
def thinking(target: Target) -> None:
    answer = connect(target).chat.completions.create(model=target.model, messages=user(ask("think")))
    message: Any = answer.choices[0].message
    equal((message.reasoning_content, message.content), (lines.THOUGHT, lines.HELLO))
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert (answer.usage.completion_tokens_details.reasoning_tokens or 0) > 0


def run_call(name: str, arguments: str) -> str:
    """What a called function returns."""
    functions: Any = {"get_weather": lines.get_weather, "get_time": lines.get_time}
    result: str = functions[name](**json.loads(arguments))
    return result


def answer_calls(message: Any) -> list[Any]:
    """A message with calls, and their results."""
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": run_call(call.function.name, call.function.arguments)}
        for call in message.tool_calls
    ]
    return [message, *results]


@matrix.check("tools")
def tools(target: Target) -> None:
    asked = user(ask("weather"))
    complete = connect(target).chat.completions.create
    called = complete(model=target.model, messages=asked, tools=TOOLS).choices[0]
    equal((called.finish_reason, called.message.content), ("tool_calls", None))
    assert called.message.tool_calls is not None
    equal(len(called.message.tool_calls), 1)
    answer = complete(model=target.model, messages=[*asked, *answer_calls(called.message)], tools=TOOLS)
    equal((answer.choices[0].message.content, answer.choices[0].finish_reason), (lines.FORECAST, "stop"))


@matrix.check("tools-stream")
def tools_stream(target: Target) -> None:
    for size in (1, 3, 200):
        asked = user(ask("weather", size=size))
        streaming: Any = connect(target).chat.completions
        streaming = streaming if hasattr(streaming, "stream") else connect(target).beta.chat.completions
        with streaming.stream(model=target.model, messages=asked, tools=TOOLS) as events:
            kinds = {event.type for event in events}
            called = events.get_final_completion().choices[0]
        assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
        equal(called.finish_reason, "tool_calls")
        with streaming.stream(
            model=target.model, messages=[*asked, *answer_calls(called.message)], tools=TOOLS
        ) as events:
            equal(events.get_final_completion().choices[0].message.content, lines.FORECAST)


@matrix.check("parallel-tools")
def parallel_tools(target: Target) -> None:
    asked = user(ask("parallel"))
    complete = connect(target).chat.completions.create
    called = complete(model=target.model, messages=asked, tools=TOOLS).choices[0].message
    assert called.tool_calls is not None
    equal(len({call.id for call in called.tool_calls}), 2)
    answer = complete(model=target.model, messages=[*asked, *answer_calls(called)], tools=TOOLS)
    equal(answer.choices[0].message.content, lines.BOTH)
    pieces: dict[int, str] = {}
    for chunk in complete(model=target.model, messages=asked, tools=TOOLS, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            pieces[call.index] = pieces.get(call.index, "") + (call.function.arguments or "")
    equal([json.loads(pieces[0]), json.loads(pieces[1])], [lines.WEATHER, lines.TIME])


@matrix.check("forced-tool")
def forced_tool(target: Target) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in (named, "required"):
        asked: Any = {"model": target.model, "messages": user(ask("weather")), "tools": TOOLS, "tool_choice": choice}
        called = connect(target).chat.completions.create(**asked).choices[0]
        assert called.message.tool_calls is not None
        call: Any = called.message.tool_calls[0]
        equal((call.function.name, json.loads(call.function.arguments)), ("get_weather", lines.WEATHER))
        equal(called.finish_reason, "tool_calls")


@matrix.check("structured")
def structured(target: Target) -> None:
    completions: Any = connect(target).chat.completions
    completions = completions if hasattr(completions, "parse") else connect(target).beta.chat.completions
    answer = completions.parse(model=target.model, messages=user(ask("person")), response_format=Person)
    equal(answer.choices[0].message.parsed, PERSON)


@matrix.check("structured-stream")
def structured_stream(target: Target) -> None:
    completions: Any = connect(target).chat.completions
    completions = completions if hasattr(completions, "stream") else connect(target).beta.chat.completions
    with completions.stream(model=target.model, messages=user(ask("person")), response_format=Person) as events:
        assert "content.done" in {event.type for event in events}
        equal(events.get_final_completion().choices[0].message.parsed, PERSON)


@matrix.check("completions")
def completions(target: Target) -> None:
    complete = connect(target).completions.create
    answer = complete(model=target.model, prompt=[ask("hello"), ask("recall")], max_tokens=64, logprobs=1)
    equal([choice.text for choice in answer.choices], [lines.HELLO, lines.FORGOT])
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens
    chunks = list(complete(model=target.model, prompt=ask("hello"), max_tokens=64, stream=True))
    equal("".join(chunk.choices[0].text for chunk in chunks), lines.HELLO)


@matrix.check("embeddings")
def embeddings(target: Target) -> None:
    create = connect(target).embeddings.create
    answer = create(model=target.model, input=lines.TEXTS)  # the client asks for base64 and decodes it
    vectors = [entry.embedding for entry in answer.data]
    lines.check_embeddings(vectors)
    floats = create(model=target.model, input=lines.TEXTS, encoding_format="float")
    lines.check_embeddings([entry.embedding for entry in floats.data])
    equal(
        [[round(x, 5) for x in entry.embedding] for entry in floats.data], [[round(x, 5) for x in v] for v in vectors]
    )
    equal(len(create(model=target.model, input=lines.TEXTS[0], dimensions=3).data[0].embedding), 3)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


@matrix.check("batches")
def batches(target: Target) -> None:
    client = connect(target)
    file = client.files.create(file=("chats.jsonl", lines.batch_file(target.model)), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while made.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.05)
        made = client.batches.retrieve(made.id)
    equal(made.status, "completed")
    assert made.output_file_id is not None
    equal(lines.batch_results(client.files.content(made.output_file_id).text), lines.BATCH_RESULTS)
    assert made.id in {batch.id for batch in client.batches.list(limit=1)}
    equal({kept.id for kept in client.files.list()}, {file.id, made.output_file_id})
    client.files.delete(file.id)
    failure(openai.NotFoundError, lambda: client.files.retrieve(file.id))


@matrix.check("responses")
def responses(target: Target) -> None:
    client = connect(target)
    made = client.responses.create(model=target.model, input=ask("think"))
    equal((made.output_text, made.status), (lines.HELLO, "completed"))
    equal([item.type for item in made.output], ["reasoning", "message"])
    equal(client.responses.retrieve(made.id).output_text, lines.HELLO)
    client.responses.delete(made.id)
    failure(openai.NotFoundError, lambda: client.responses.retrieve(made.id))
    parsed = client.responses.parse(model=target.model, input=ask("person"), text_format=Person)
    equal(parsed.output_parsed, PERSON)


@matrix.check("responses-stream")
def responses_stream(target: Target) -> None:
    with connect(target).responses.stream(model=target.model, input=ask("hello")) as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    equal((kinds[0], kinds[-1]), ("response.created", "response.completed"))
    equal(final.output_text, lines.HELLO)
    assert final.usage is not None
    equal(final.usage.output_tokens, target.num_hello_tokens)


@matrix.check("responses-tools")
def responses_tools(target: Target) -> None:
    create = connect(target).responses.create
    called = create(model=target.model, input=ask("parallel"), tools=FLAT_TOOLS)
    calls: list[Any] = [item for item in called.output if item.type == "function_call"]
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": run_call(call.name, call.arguments)}
        for call in calls
    ]
    equal([call.name for call in calls], ["get_weather", "get_time"])
    answer = create(model=target.model, input=results, tools=FLAT_TOOLS, previous_response_id=called.id)
    equal(answer.output_text, lines.BOTH)
    with connect(target).responses.stream(model=target.model, input=ask("weather"), tools=FLAT_TOOLS) as events:
        pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    equal(json.loads("".join(pieces)), lines.WEATHER)


@matrix.check("responses-state")
def responses_state(target: Target) -> None:
    create = connect(target).responses.create
    first = create(model=target.model, input=ask("hello"))
    equal(create(model=target.model, input=ask("recall")).output_text, lines.FORGOT)
    second = create(model=target.model, input=ask("recall"), previous_response_id=first.id)
    equal((second.output_text, second.previous_response_id), (lines.RECALLED, first.id))


@matrix.check("models")
def models(target: Target) -> None:
    client = connect(target)
    equal([model.id for model in client.models.list()], [target.model])
    equal(client.models.retrieve(target.model).id, target.model)


@matrix.check("bad-request")
def bad_request(target: Target) -> None:
    client = connect(target, max_retries=2)
    error = failure(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=target.model, messages=user(ask("hello")), temperature=3),
    )
    equal((error.status_code, error.param, error.type), (400, "temperature", "invalid_request_error"))
    assert error.request_id
    streamed = failure(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=target.model, messages=[], stream=True),
    )
    equal(streamed.param, "messages")


@matrix.check("too-long")
def too_long(target: Target) -> None:
    client = connect(target)
    long = user("many words " * 20_000 + ask("hello"))
    error = failure(openai.BadRequestError, lambda: client.chat.completions.create(model=target.model, messages=long))
    equal((error.code, error.param), ("context_length_exceeded", "messages"))


@matrix.check("wrong-key")
def wrong_key(target: Target) -> None:
    client = connect(target, api_key="wrong", max_retries=2)
    equal(failure(openai.AuthenticationError, client.models.list).code, "invalid_api_key")


@matrix.check("unknown-model")
def unknown_model(target: Target) -> None:
    client = connect(target, max_retries=2)
    error = failure(
        openai.NotFoundError,
        lambda: client.chat.completions.create(model="no/such", messages=user(ask("hello"))),
    )
    equal((error.code, error.param), ("model_not_found", "model"))


@matrix.check("retries")
def retries(target: Target) -> None:
    asked = user(ask("busy", times=1))
    error = failure(
        openai.InternalServerError,
        lambda: connect(target).chat.completions.create(model=target.model, messages=asked),
    )
    equal((error.status_code, error.code), (503, "server_is_overloaded"))
    equal(error.response.headers["retry-after"], "1")
    client = connect(target, max_retries=2)
    answer = client.chat.completions.create(model=target.model, messages=user(ask("busy", times=1, other=1)))
    equal(answer.choices[0].message.content, lines.HELLO)


@matrix.check("server-error")
def server_error(target: Target) -> None:
    before = target.count_requests(500)
    client = connect(target, max_retries=2)
    error = failure(
        openai.InternalServerError,
        lambda: client.chat.completions.create(model=target.model, messages=user(ask("crash"))),
    )
    equal((error.status_code, error.code), (500, "internal_error"))
    equal(target.count_requests(500), before + 1)


@matrix.check("broken-stream")
def broken_stream(target: Target) -> None:
    said: list[str] = []

    def read() -> None:
        for chunk in connect(target).chat.completions.create(
            model=target.model, messages=user(ask("broken")), stream=True
        ):
            said.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - kept when the stream fails

    error = failure(openai.APIError, read)
    equal("".join(said), lines.FIRST_TOKENS)
    assert "engine" in error.message


@matrix.check("timeout")
def timeout(target: Target) -> None:
    client = connect(target, timeout=SHORT_S)
    for is_streamed in (False, True):

        def read(is_streamed: bool = is_streamed) -> None:
            asked: Any = {"model": target.model, "messages": user(ask("hang")), "stream": is_streamed}
            answer: Any = client.chat.completions.create(**asked)
            list(answer)

        # Streams: httpx's own error in older versions, once the answer has begun.
        error = failure(Exception, read)
        assert "Timeout" in type(error).__name__, error
        target.wait_until_idle()


@matrix.check("abort")
def abort(target: Target) -> None:
    with connect(target).chat.completions.create(
        model=target.model, messages=user(ask("endless")), stream=True, max_tokens=10_000
    ) as chunks:
        for _, _chunk in zip(range(5), chunks, strict=False):
            pass
    target.wait_until_idle()


def command(target: Target) -> None:
    program = [str(PROGRAM), "api", "chat.completions.create"]
    for options in ([], ["--stream"]):
        done = subprocess.run(
            [*program, "-m", target.model, "-g", "user", ask("hello"), *options],
            env={**os.environ, "OPENAI_BASE_URL": target.url, "OPENAI_API_KEY": target.key},
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        equal(done.stdout.strip(), lines.HELLO)


if PROGRAM.exists():
    matrix.check("command")(command)
else:
    matrix.lacks("This version has no command line.", "command")


def real(target: Target) -> OpenAI:
    """A client of the real model's server."""
    return OpenAI(base_url=target.real_url, api_key="none")


@matrix.check("real-chat")
def real_chat(target: Target) -> None:
    answer = real(target).chat.completions.create(
        model=target.real_model, messages=user(QUESTION), temperature=0, max_tokens=MODEL_MAX_TOKENS
    )
    assert "Paris" in (answer.choices[0].message.content or ""), answer


@matrix.check("real-stream")
def real_stream(target: Target) -> None:
    chunks = real(target).chat.completions.create(
        model=target.real_model, messages=user(QUESTION), temperature=0, max_tokens=MODEL_MAX_TOKENS, stream=True
    )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "Paris" in said, said


if __name__ == "__main__":
    matrix.run()
