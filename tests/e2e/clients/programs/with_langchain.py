"""LangChain's `langchain-openai`."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from tests.e2e.clients.programs import lines
from tests.e2e.clients.programs.harness import MODEL_MAX_TOKENS, QUESTION, SHORT_S, Matrix, Target, equal, failure
from tests.e2e.clients.programs.lines import ask

matrix = Matrix("langchain-openai")
TOOLS = {function.__name__: tool(function) for function in (lines.get_weather, lines.get_time)}


class Person(BaseModel):
    """What `person` says."""

    name: str
    age: int


PERSON = Person(**lines.PERSON)


def connect(target: Target, **options: Any) -> Any:
    """A chat model of the scripted server, without retries."""
    return ChatOpenAI(
        **{"base_url": target.url, "api_key": target.key, "model": target.model, "max_retries": 0, **options}
    )


@matrix.check("chat")
def chat(target: Target) -> None:
    answer = connect(target).invoke(ask("hello", size=3))
    equal(answer.content, lines.HELLO)
    equal(answer.usage_metadata["output_tokens"], target.num_hello_tokens)
    equal(answer.usage_metadata["input_token_details"]["cache_read"], target.num_cached_tokens)
    equal(answer.response_metadata["finish_reason"], "stop")


@matrix.check("stream")
def stream(target: Target) -> None:
    for size in (1, 2, 50):
        pieces = [chunk.content for chunk in connect(target, stream_usage=False).stream(ask("hello", size=size))]
        equal("".join(pieces), lines.HELLO)


@matrix.check("stream-usage")
def stream_usage(target: Target) -> None:
    whole = AIMessageChunk(content="")
    for chunk in connect(target, stream_usage=True).stream(ask("hello")):
        whole += chunk
    equal(whole.content, lines.HELLO)
    equal(whole.usage_metadata["output_tokens"], target.num_hello_tokens)
    equal(whole.response_metadata["finish_reason"], "stop")


@matrix.check("async")
async def side_by_side(target: Target) -> None:
    model = connect(target)
    answers = await asyncio.gather(*(model.ainvoke(ask("hello")) for _ in range(8)))
    equal([answer.content for answer in answers], [lines.HELLO] * 8)
    equal("".join([chunk.content async for chunk in model.astream(ask("hello"))]), lines.HELLO)


@matrix.check("history")
def history(target: Target) -> None:
    equal(connect(target).invoke(lines.history()).content, lines.OBEYED)
    equal(connect(target, use_responses_api=True).invoke(lines.history()).text, lines.OBEYED)


@matrix.check("choices")
def choices(target: Target) -> None:
    (generations,) = connect(target, n=3).generate([[HumanMessage(ask("choices"))]]).generations
    equal([generation.text for generation in generations], ["Choice 0.", "Choice 1.", "Choice 2."])


@matrix.check("logprobs")
def logprobs(target: Target) -> None:
    answer = connect(target, logprobs=True, top_logprobs=2).invoke(ask("hello"))
    tokens = answer.response_metadata["logprobs"]["content"]
    equal(b"".join(bytes(token["bytes"]) for token in tokens).decode(), lines.HELLO)
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


matrix.lacks("Drops the thinking of Chat Completions; reads that of responses.", "thinking")


def results_of(message: Any) -> list[Any]:
    """A message with calls, and their results."""
    called = [TOOLS[call["name"]].invoke(call) for call in message.tool_calls]
    assert all(isinstance(result, ToolMessage) for result in called)
    return [message, *called]


@matrix.check("tools")
def tools(target: Target) -> None:
    model = connect(target).bind_tools(list(TOOLS.values()))
    asked = HumanMessage(ask("weather"))
    called = model.invoke([asked])
    equal([(call["name"], call["args"]) for call in called.tool_calls], [("get_weather", lines.WEATHER)])
    equal(model.invoke([asked, *results_of(called)]).content, lines.FORECAST)


@matrix.check("tools-stream")
def tools_stream(target: Target) -> None:
    model = connect(target).bind_tools(list(TOOLS.values()))
    for size in (1, 3, 200):
        asked = HumanMessage(ask("weather", size=size))
        called = AIMessageChunk(content="")
        for chunk in model.stream([asked]):
            called += chunk
        equal([(call["name"], call["args"]) for call in called.tool_calls], [("get_weather", lines.WEATHER)])
        answer = "".join(chunk.content for chunk in model.stream([asked, *results_of(called)]))
        equal(answer, lines.FORECAST)


@matrix.check("parallel-tools")
def parallel_tools(target: Target) -> None:
    model = connect(target).bind_tools(list(TOOLS.values()))
    asked = HumanMessage(ask("parallel"))
    called = model.invoke([asked])
    equal([call["args"] for call in called.tool_calls], [lines.WEATHER, lines.TIME])
    equal(model.invoke([asked, *results_of(called)]).content, lines.BOTH)


@matrix.check("forced-tool")
def forced_tool(target: Target) -> None:
    for choice in ("get_weather", "any"):
        called = connect(target).bind_tools(list(TOOLS.values()), tool_choice=choice).invoke(ask("weather"))
        equal([(call["name"], call["args"]) for call in called.tool_calls], [("get_weather", lines.WEATHER)])


@matrix.check("structured")
def structured(target: Target) -> None:
    for method in ("json_schema", "function_calling", "json_mode"):
        equal(connect(target).with_structured_output(Person, method=method).invoke(ask("person")), PERSON)
    equal(connect(target).with_structured_output(Person, strict=True).invoke(ask("person")), PERSON)


@matrix.check("structured-stream")
def structured_stream(target: Target) -> None:
    model = connect(target).with_structured_output(Person)
    equal(list(model.stream(ask("person")))[-1], PERSON)


@matrix.check("completions")
def completions(target: Target) -> None:
    model = OpenAI(base_url=target.url, api_key=target.key, model=target.model, max_retries=0)
    equal(model.invoke(ask("hello")), lines.HELLO)
    equal("".join(model.stream(ask("hello"))), lines.HELLO)
    equal(model.batch([ask("hello"), ask("recall")]), [lines.HELLO, lines.FORGOT])


@matrix.check("embeddings")
def embeddings(target: Target) -> None:
    # Otherwise it sends token ids of another tokenizer, which it fetches from the network.
    model = OpenAIEmbeddings(
        base_url=target.url, api_key=target.key, model=target.model, check_embedding_ctx_length=False
    )
    lines.check_embeddings(model.embed_documents(lines.TEXTS))
    equal(model.embed_query(lines.TEXTS[0]), model.embed_documents(lines.TEXTS)[0])


matrix.lacks("Has no batches.", "batches")


@matrix.check("responses")
def responses(target: Target) -> None:
    answer = connect(target, use_responses_api=True).invoke(ask("think"))
    equal(answer.text, lines.HELLO)
    assert "reasoning" in {block["type"] for block in answer.content_blocks}
    model = connect(target, use_responses_api=True).with_structured_output(Person)
    equal(model.invoke(ask("person")), PERSON)


@matrix.check("responses-stream")
def responses_stream(target: Target) -> None:
    whole = AIMessageChunk(content="")
    for chunk in connect(target, use_responses_api=True).stream(ask("hello")):
        whole += chunk
    equal(whole.text, lines.HELLO)
    equal(whole.usage_metadata["output_tokens"], target.num_hello_tokens)


@matrix.check("responses-tools")
def responses_tools(target: Target) -> None:
    model = connect(target, use_responses_api=True).bind_tools(list(TOOLS.values()))
    asked = HumanMessage(ask("parallel"))
    called = model.invoke([asked])
    equal([call["args"] for call in called.tool_calls], [lines.WEATHER, lines.TIME])
    equal(model.invoke([asked, *results_of(called)]).text, lines.BOTH)


@matrix.check("responses-state")
def responses_state(target: Target) -> None:
    model = connect(target, use_previous_response_id=True)
    first = model.invoke(ask("hello"))
    assert first.response_metadata["id"].startswith("resp_")
    answer = model.invoke([HumanMessage(ask("hello")), first, HumanMessage(ask("recall"))])
    equal(answer.text, lines.RECALLED)


matrix.lacks("Does not list models.", "models")


@matrix.check("bad-request")
def bad_request(target: Target) -> None:
    error = failure(openai.BadRequestError, lambda: connect(target, temperature=3).invoke(ask("hello")))
    equal(error.param, "temperature")


@matrix.check("too-long")
def too_long(target: Target) -> None:
    long = "many words " * 20_000 + ask("hello")
    error = failure(openai.BadRequestError, lambda: connect(target).invoke(long))
    equal(error.code, "context_length_exceeded")
    assert type(error).__name__ == "OpenAIContextOverflowError", type(error)


@matrix.check("wrong-key")
def wrong_key(target: Target) -> None:
    failure(openai.AuthenticationError, lambda: connect(target, api_key="wrong").invoke(ask("hello")))


@matrix.check("unknown-model")
def unknown_model(target: Target) -> None:
    failure(openai.NotFoundError, lambda: connect(target, model="no/such").invoke(ask("hello")))


@matrix.check("retries")
def retries(target: Target) -> None:
    failure(openai.InternalServerError, lambda: connect(target).invoke(ask("busy", times=1)))
    equal(connect(target, max_retries=2).invoke(ask("busy", times=1, other=1)).content, lines.HELLO)


@matrix.check("server-error")
def server_error(target: Target) -> None:
    before = target.count_requests(500)
    failure(openai.InternalServerError, lambda: connect(target, max_retries=2).invoke(ask("crash")))
    equal(target.count_requests(500), before + 1)


@matrix.check("broken-stream")
def broken_stream(target: Target) -> None:
    failure(openai.APIError, lambda: list(connect(target).stream(ask("broken"))))


@matrix.check("timeout")
def timeout(target: Target) -> None:
    model = connect(target, timeout=SHORT_S)
    failure(openai.APITimeoutError, lambda: model.invoke(ask("hang")))
    target.wait_until_idle()
    error = failure(Exception, lambda: list(model.stream(ask("hang"))))
    assert "Timeout" in type(error).__name__, error


@matrix.check("abort")
def abort(target: Target) -> None:
    chunks = connect(target, max_tokens=10_000).stream(ask("endless"))
    for _, _chunk in zip(range(5), chunks, strict=False):
        pass
    chunks.close()
    target.wait_until_idle()


matrix.lacks("Has no command line.", "command")


def real(target: Target) -> Any:
    """A chat model of the real server."""
    return ChatOpenAI(
        base_url=target.real_url,
        api_key="none",
        model=target.real_model,
        temperature=0,
        max_tokens=MODEL_MAX_TOKENS,
    )


@matrix.check("real-chat")
def real_chat(target: Target) -> None:
    assert "Paris" in real(target).invoke(QUESTION).content


@matrix.check("real-stream")
def real_stream(target: Target) -> None:
    assert "Paris" in "".join(chunk.content for chunk in real(target).stream(QUESTION))


if __name__ == "__main__":
    matrix.run()
