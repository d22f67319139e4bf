"""LiteLLM as a library, not as a proxy."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import litellm
from pydantic import BaseModel

from tests.e2e.clients.programs import lines
from tests.e2e.clients.programs.harness import MODEL_MAX_TOKENS, QUESTION, SHORT_S, Matrix, Target, equal, failure
from tests.e2e.clients.programs.lines import ask

matrix = Matrix("litellm")
litellm.suppress_debug_info = True

TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "parameters": lines.WEATHER_SCHEMA}},
    {"type": "function", "function": {"name": "get_time", "parameters": lines.TIME_SCHEMA}},
]


class Person(BaseModel):
    """What `person` says."""

    name: str
    age: int


PERSON = Person(**lines.PERSON)


def given(target: Target, **options: Any) -> dict[str, Any]:
    """Options of every call: the scripted server, without retries."""
    named = {"model": f"openai/{target.model}", "api_base": target.url, "api_key": target.key, "max_retries": 0}
    return {**named, **options}


def complete(target: Target, prompt: Any, **options: Any) -> Any:
    """One chat; the prompt is a text or messages."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return litellm.completion(messages=messages, **given(target, **options))


@matrix.check("chat")
def chat(target: Target) -> None:
    answer = complete(target, ask("hello", size=3))
    equal((answer.choices[0].message.content, answer.choices[0].finish_reason), (lines.HELLO, "stop"))
    equal(answer.usage.completion_tokens, target.num_hello_tokens)
    equal(answer.usage.prompt_tokens_details.cached_tokens, target.num_cached_tokens)


@matrix.check("stream")
def stream(target: Target) -> None:
    for size in (1, 2, 50):
        chunks = list(complete(target, ask("hello", size=size), stream=True))
        equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), lines.HELLO)
        equal([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason], ["stop"])


@matrix.check("stream-usage")
def stream_usage(target: Target) -> None:
    chunks = list(complete(target, ask("hello"), stream=True, stream_options={"include_usage": True}))
    whole: Any = litellm.stream_chunk_builder(chunks)
    equal(whole.choices[0].message.content, lines.HELLO)
    equal(whole.usage.completion_tokens, target.num_hello_tokens)


@matrix.check("async")
async def side_by_side(target: Target) -> None:
    messages = [{"role": "user", "content": ask("hello")}]
    calls = (litellm.acompletion(messages=messages, **given(target)) for _ in range(8))
    answers: Any = await asyncio.gather(*calls)
    equal([answer.choices[0].message.content for answer in answers], [lines.HELLO] * 8)
    chunks: Any = await litellm.acompletion(messages=messages, stream=True, **given(target))
    equal("".join([chunk.choices[0].delta.content or "" async for chunk in chunks]), lines.HELLO)


@matrix.check("history")
def history(target: Target) -> None:
    for role in ("system", "developer"):
        equal(complete(target, lines.history(role)).choices[0].message.content, lines.OBEYED)


@matrix.check("choices")
def choices(target: Target) -> None:
    said = [choice.message.content for choice in complete(target, ask("choices"), n=3).choices]
    equal(said, ["Choice 0.", "Choice 1.", "Choice 2."])


@matrix.check("logprobs")
def logprobs(target: Target) -> None:
    found = complete(target, ask("hello"), logprobs=True, top_logprobs=2).choices[0].logprobs.content
    equal(b"".join(bytes(token["bytes"]) for token in found).decode(), lines.HELLO)


@matrix.check("thinking")
def thinking(target: Target) -> None:
    message = complete(target, ask("think")).choices[0].message
    equal((message.reasoning_content, message.content), (lines.THOUGHT, lines.HELLO))
    whole: Any = litellm.stream_chunk_builder(list(complete(target, ask("think"), stream=True)))
    message = whole.choices[0].message
    equal((message.reasoning_content, message.content), (lines.THOUGHT, lines.HELLO))


def results_of(message: Any) -> list[Any]:
    """A message with calls, and their results."""
    functions: Any = {"get_weather": lines.get_weather, "get_time": lines.get_time}
    results = []
    for call in message.tool_calls:
        result = functions[call.function.name](**json.loads(call.function.arguments))
        results.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return [message, *results]


@matrix.check("tools")
def tools(target: Target) -> None:
    asked = [{"role": "user", "content": ask("weather")}]
    called = complete(target, asked, tools=TOOLS).choices[0]
    equal((called.finish_reason, len(called.message.tool_calls)), ("tool_calls", 1))
    answer = complete(target, [*asked, *results_of(called.message)], tools=TOOLS)
    equal(answer.choices[0].message.content, lines.FORECAST)


@matrix.check("tools-stream")
def tools_stream(target: Target) -> None:
    for size in (1, 3, 200):
        asked = [{"role": "user", "content": ask("weather", size=size)}]
        called: Any = litellm.stream_chunk_builder(list(complete(target, asked, tools=TOOLS, stream=True)))
        equal(called.choices[0].finish_reason, "tool_calls")
        history = [*asked, *results_of(called.choices[0].message)]
        answer: Any = litellm.stream_chunk_builder(list(complete(target, history, tools=TOOLS, stream=True)))
        equal(answer.choices[0].message.content, lines.FORECAST)


@matrix.check("parallel-tools")
def parallel_tools(target: Target) -> None:
    asked = [{"role": "user", "content": ask("parallel")}]
    called = complete(target, asked, tools=TOOLS).choices[0].message
    equal(len(called.tool_calls), 2)
    answer = complete(target, [*asked, *results_of(called)], tools=TOOLS)
    equal(answer.choices[0].message.content, lines.BOTH)


@matrix.check("forced-tool")
def forced_tool(target: Target) -> None:
    for choice in ({"type": "function", "function": {"name": "get_weather"}}, "required"):
        (call,) = complete(target, ask("weather"), tools=TOOLS, tool_choice=choice).choices[0].message.tool_calls
        equal((call.function.name, json.loads(call.function.arguments)), ("get_weather", lines.WEATHER))


@matrix.check("structured")
def structured(target: Target) -> None:
    content = complete(target, ask("person"), response_format=Person).choices[0].message.content
    equal(Person.model_validate_json(content), PERSON)


@matrix.check("structured-stream")
def structured_stream(target: Target) -> None:
    chunks = complete(target, ask("person"), response_format=Person, stream=True)
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    equal(Person.model_validate_json(content), PERSON)


@matrix.check("completions")
def completions(target: Target) -> None:
    options = given(target, model=f"text-completion-openai/{target.model}", max_tokens=64)
    answer: Any = litellm.text_completion(prompt=ask("hello"), **options)
    equal(answer.choices[0].text, lines.HELLO)
    chunks: Any = litellm.text_completion(prompt=ask("hello"), stream=True, **options)
    equal("".join(chunk.choices[0].text or "" for chunk in chunks), lines.HELLO)


@matrix.check("embeddings")
def embeddings(target: Target) -> None:
    answer: Any = litellm.embedding(input=lines.TEXTS, **given(target))
    lines.check_embeddings([entry["embedding"] for entry in answer.data])


@matrix.check("batches")
def batches(target: Target) -> None:
    options: Any = {"custom_llm_provider": "openai", "api_base": target.url, "api_key": target.key}
    file: Any = litellm.create_file(file=("chats.jsonl", lines.batch_file(target.model)), purpose="batch", **options)
    made: Any = litellm.create_batch(
        completion_window="24h", endpoint="/v1/chat/completions", input_file_id=file.id, **options
    )
    while made.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.05)
        made = litellm.retrieve_batch(batch_id=made.id, **options)
    equal(made.status, "completed")
    content: Any = litellm.file_content(file_id=made.output_file_id, **options)
    equal(lines.batch_results(content.text), lines.BATCH_RESULTS)


def said(response: Any) -> str:
    """The text of a response."""
    return "".join(part.text for item in response.output if item.type == "message" for part in item.content)


@matrix.check("responses")
def responses(target: Target) -> None:
    made: Any = litellm.responses(input=ask("think"), **given(target))
    equal((said(made), made.status), (lines.HELLO, "completed"))


@matrix.check("responses-stream")
def responses_stream(target: Target) -> None:
    events: Any = litellm.responses(input=ask("hello"), stream=True, **given(target))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    equal("".join(pieces), lines.HELLO)


@matrix.check("responses-tools")
def responses_tools(target: Target) -> None:
    flat: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    called: Any = litellm.responses(input=ask("weather"), tools=flat, **given(target))
    (call,) = [item for item in called.output if item.type == "function_call"]
    equal((call.name, json.loads(call.arguments)), ("get_weather", lines.WEATHER))
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": lines.DEGREES}]
    answer = litellm.responses(input=result, tools=flat, previous_response_id=called.id, **given(target))
    equal(said(answer), lines.FORECAST)


@matrix.check("responses-state")
def responses_state(target: Target) -> None:
    first: Any = litellm.responses(input=ask("hello"), **given(target))
    second = litellm.responses(input=ask("recall"), previous_response_id=first.id, **given(target))
    equal(said(second), lines.RECALLED)


@matrix.check("models")
def models(target: Target) -> None:
    found = litellm.get_valid_models(
        check_provider_endpoint=True,
        custom_llm_provider="openai",
        api_base=target.url.removesuffix("/v1"),
        api_key=target.key,
    )
    equal([name.removeprefix("openai/") for name in found], [target.model])


@matrix.check("bad-request")
def bad_request(target: Target) -> None:
    error = failure(litellm.BadRequestError, lambda: complete(target, ask("hello"), temperature=3))
    equal(error.status_code, 400)
    assert "temperature" in str(error)


@matrix.check("too-long")
def too_long(target: Target) -> None:
    long = "many words " * 20_000 + ask("hello")
    failure(litellm.ContextWindowExceededError, lambda: complete(target, long))


@matrix.check("wrong-key")
def wrong_key(target: Target) -> None:
    failure(litellm.AuthenticationError, lambda: complete(target, ask("hello"), api_key="wrong"))


@matrix.check("unknown-model")
def unknown_model(target: Target) -> None:
    failure(litellm.NotFoundError, lambda: complete(target, ask("hello"), model="openai/no/such"))


@matrix.check("retries")
def retries(target: Target) -> None:
    failure(litellm.ServiceUnavailableError, lambda: complete(target, ask("busy", times=1)))
    answer = complete(target, ask("busy", times=1, other=1), max_retries=2)
    equal(answer.choices[0].message.content, lines.HELLO)


@matrix.check("server-error")
def server_error(target: Target) -> None:
    before = target.count_requests(500)
    failure(litellm.InternalServerError, lambda: complete(target, ask("crash"), max_retries=2))
    equal(target.count_requests(500), before + 1)


@matrix.check("broken-stream")
def broken_stream(target: Target) -> None:
    failure(litellm.exceptions.MidStreamFallbackError, lambda: list(complete(target, ask("broken"), stream=True)))


@matrix.check("timeout")
def timeout(target: Target) -> None:
    failure(litellm.Timeout, lambda: complete(target, ask("hang"), timeout=SHORT_S))
    target.wait_until_idle()
    failure(litellm.Timeout, lambda: list(complete(target, ask("hang"), timeout=SHORT_S, stream=True)))


@matrix.check("abort")
async def abort(target: Target) -> None:
    messages = [{"role": "user", "content": ask("endless")}]
    chunks: Any = await litellm.acompletion(messages=messages, stream=True, **given(target, max_tokens=10_000))
    async for _ in chunks:
        break
    await chunks.aclose()
    await asyncio.to_thread(target.wait_until_idle)  # the loop has to close the connection


matrix.lacks("The command line is a proxy.", "command")


def ask_real(target: Target, **options: Any) -> Any:
    """One chat with the real server."""
    return litellm.completion(
        model=f"openai/{target.real_model}",
        api_base=target.real_url,
        api_key="none",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=MODEL_MAX_TOKENS,
        **options,
    )


@matrix.check("real-chat")
def real_chat(target: Target) -> None:
    assert "Paris" in ask_real(target).choices[0].message.content


@matrix.check("real-stream")
def real_stream(target: Target) -> None:
    chunks = ask_real(target, stream=True)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


if __name__ == "__main__":
    matrix.run()
