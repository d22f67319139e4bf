"""LlamaIndex's `llama-index-llms-openai-like`."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import openai
from llama_index.core import PromptTemplate
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel

from tests.e2e.clients.programs import lines
from tests.e2e.clients.programs.harness import MODEL_MAX_TOKENS, QUESTION, SHORT_S, Matrix, Target, equal, failure
from tests.e2e.clients.programs.lines import ask

matrix = Matrix("llama-index-llms-openai-like")
TOOLS: dict[str, Any] = {
    function.__name__: FunctionTool.from_defaults(function) for function in (lines.get_weather, lines.get_time)
}


class Person(BaseModel):
    """What `person` says."""

    name: str
    age: int


PERSON = Person(**lines.PERSON)


def _options(target: Target, **options: Any) -> dict[str, Any]:
    given = {"model": target.model, "api_base": target.url, "api_key": target.key, "max_retries": 0, "timeout": 600.0}
    return {**given, "is_chat_model": True, "is_function_calling_model": True, **options}


def connect(target: Target, **options: Any) -> Any:
    """A model of the scripted server, without retries."""
    return OpenAILike(**_options(target, **options))


def connect_responses(target: Target, **options: Any) -> Any:
    """The same over the Responses API."""
    return OpenAILikeResponses(**_options(target, **options))


def user(text: str) -> list[Any]:
    """The messages of one turn."""
    return [ChatMessage(role="user", content=text)]


@matrix.check("chat")
def chat(target: Target) -> None:
    answer = connect(target).chat(user(ask("hello", size=3)))
    equal(answer.message.content, lines.HELLO)
    equal(answer.raw.usage.completion_tokens, target.num_hello_tokens)
    equal(answer.additional_kwargs["completion_tokens"], target.num_hello_tokens)


@matrix.check("stream")
def stream(target: Target) -> None:
    for size in (1, 2, 50):
        parts = list(connect(target).stream_chat(user(ask("hello", size=size))))
        equal("".join(part.delta for part in parts), lines.HELLO)
        equal(parts[-1].message.content, lines.HELLO)


@matrix.check("stream-usage")
def stream_usage(target: Target) -> None:
    options = {"stream_options": {"include_usage": True}}
    parts = list(connect(target, additional_kwargs=options).stream_chat(user(ask("hello"))))
    equal(parts[-1].additional_kwargs["completion_tokens"], target.num_hello_tokens)
    equal(parts[-1].message.content, lines.HELLO)


@matrix.check("async")
async def side_by_side(target: Target) -> None:
    model = connect(target)
    answers = await asyncio.gather(*(model.achat(user(ask("hello"))) for _ in range(8)))
    equal([answer.message.content for answer in answers], [lines.HELLO] * 8)
    parts = [part.delta async for part in await model.astream_chat(user(ask("hello")))]
    equal("".join(parts), lines.HELLO)


@matrix.check("history")
def history(target: Target) -> None:
    turns = [ChatMessage(role=turn["role"], content=turn["content"]) for turn in lines.history()[:-1]]
    equal(connect(target).chat([*turns, *user(ask("obey"))]).message.content, lines.OBEYED)
    equal(connect_responses(target).chat([*turns, *user(ask("obey"))]).message.content, lines.OBEYED)


matrix.lacks("Gives one choice only.", "choices")


@matrix.check("logprobs")
def logprobs(target: Target) -> None:
    answer = connect(target, logprobs=True, top_logprobs=2).chat(user(ask("hello")))
    equal(b"".join(bytes(tokens[0].bytes) for tokens in answer.logprobs), lines.HELLO.encode())


@matrix.check("thinking")
def thinking(target: Target) -> None:
    message = connect(target).chat(user(ask("think"))).message
    equal((message.content, message.blocks[0].content), (lines.HELLO, lines.THOUGHT))
    *_, last = connect(target).stream_chat(user(ask("think")))
    equal((last.message.content, last.message.blocks[0].content), (lines.HELLO, lines.THOUGHT))


def results_of(model: Any, answer: Any) -> list[Any]:
    """A message with calls, and their results."""
    results = []
    for call in model.get_tool_calls_from_response(answer):
        result = TOOLS[call.tool_name](**call.tool_kwargs)
        results.append(ChatMessage(role="tool", content=str(result), additional_kwargs={"tool_call_id": call.tool_id}))
    return [answer.message, *results]


@matrix.check("tools")
def tools(target: Target) -> None:
    model = connect(target)
    asked = user(ask("weather"))
    called = model.chat_with_tools(list(TOOLS.values()), chat_history=asked)
    (call,) = model.get_tool_calls_from_response(called)
    equal((call.tool_name, call.tool_kwargs), ("get_weather", lines.WEATHER))
    history = [*asked, *results_of(model, called)]
    equal(model.chat_with_tools(list(TOOLS.values()), chat_history=history).message.content, lines.FORECAST)


@matrix.check("tools-stream")
def tools_stream(target: Target) -> None:
    model = connect(target)
    for size in (1, 3, 200):
        asked = user(ask("weather", size=size))
        *_, called = model.stream_chat_with_tools(list(TOOLS.values()), chat_history=asked)
        (call,) = model.get_tool_calls_from_response(called)
        equal((call.tool_name, call.tool_kwargs), ("get_weather", lines.WEATHER))
        history = [*asked, *results_of(model, called)]
        *_, answer = model.stream_chat_with_tools(list(TOOLS.values()), chat_history=history)
        equal(answer.message.content, lines.FORECAST)


@matrix.check("parallel-tools")
def parallel_tools(target: Target) -> None:
    model = connect(target)
    asked = user(ask("parallel"))
    options: Any = {"tools": list(TOOLS.values()), "allow_parallel_tool_calls": True}
    called = model.chat_with_tools(chat_history=asked, **options)
    calls = model.get_tool_calls_from_response(called)
    equal([call.tool_kwargs for call in calls], [lines.WEATHER, lines.TIME])
    history = [*asked, *results_of(model, called)]
    equal(model.chat_with_tools(chat_history=history, **options).message.content, lines.BOTH)


@matrix.check("forced-tool")
def forced_tool(target: Target) -> None:
    model = connect(target)
    for options in ({"tool_required": True}, {"tool_choice": "get_weather"}):
        asked: Any = {"tools": list(TOOLS.values()), "chat_history": user(ask("weather")), **options}
        (call,) = model.get_tool_calls_from_response(model.chat_with_tools(**asked))
        equal((call.tool_name, call.tool_kwargs), ("get_weather", lines.WEATHER))


@matrix.check("structured")
def structured(target: Target) -> None:
    prompt = PromptTemplate(ask("person"))
    for by_format in (True, False):
        model = connect(target, should_use_structured_outputs=by_format)
        equal(model.structured_predict(Person, prompt), PERSON)


@matrix.check("structured-stream")
def structured_stream(target: Target) -> None:
    *_, last = connect(target).stream_structured_predict(Person, PromptTemplate(ask("person")))
    equal((last.name, last.age), (PERSON.name, PERSON.age))


@matrix.check("completions")
def completions(target: Target) -> None:
    model = connect(target, is_chat_model=False, max_tokens=64)
    equal(model.complete(ask("hello")).text, lines.HELLO)
    equal("".join(part.delta for part in model.stream_complete(ask("hello"))), lines.HELLO)


@matrix.check("embeddings")
def embeddings(target: Target) -> None:
    model = OpenAILikeEmbedding(api_base=target.url, api_key=target.key, model_name=target.model, max_retries=0)
    lines.check_embeddings(model.get_text_embedding_batch(lines.TEXTS))
    equal(model.get_query_embedding(lines.TEXTS[0]), model.get_text_embedding(lines.TEXTS[0]))


matrix.lacks("Has no batches.", "batches")


@matrix.check("responses")
def responses(target: Target) -> None:
    equal(connect_responses(target).chat(user(ask("hello"))).message.content, lines.HELLO)


@matrix.check("responses-stream")
def responses_stream(target: Target) -> None:
    parts = list(connect_responses(target).stream_chat(user(ask("hello"))))
    equal("".join(part.delta for part in parts if part.delta), lines.HELLO)


@matrix.check("responses-tools")
def responses_tools(target: Target) -> None:
    model = connect_responses(target)
    asked = user(ask("weather"))
    called = model.chat_with_tools(list(TOOLS.values()), chat_history=asked)
    (call,) = model.get_tool_calls_from_response(called)
    equal((call.tool_name, call.tool_kwargs), ("get_weather", lines.WEATHER))
    result = ChatMessage(role="tool", content=lines.DEGREES, additional_kwargs={"call_id": call.tool_id})
    history = [*asked, called.message, result]
    equal(model.chat_with_tools(list(TOOLS.values()), chat_history=history).message.content, lines.FORECAST)


@matrix.check("responses-state")
def responses_state(target: Target) -> None:
    model = connect_responses(target, track_previous_responses=True)
    equal(model.chat(user(ask("recall"))).message.content, lines.FORGOT)
    model.chat(user(ask("hello")))
    equal(model.chat(user(ask("recall"))).message.content, lines.RECALLED)


matrix.lacks("Does not list models.", "models")


@matrix.check("bad-request")
def bad_request(target: Target) -> None:
    options = {"top_p": 3}
    error = failure(openai.BadRequestError, lambda: connect(target, additional_kwargs=options).chat(user(ask("hello"))))
    equal(error.param, "top_p")


@matrix.check("too-long")
def too_long(target: Target) -> None:
    long = user("many words " * 20_000 + ask("hello"))
    equal(failure(openai.BadRequestError, lambda: connect(target).chat(long)).code, "context_length_exceeded")


@matrix.check("wrong-key")
def wrong_key(target: Target) -> None:
    failure(openai.AuthenticationError, lambda: connect(target, api_key="wrong").chat(user(ask("hello"))))


@matrix.check("unknown-model")
def unknown_model(target: Target) -> None:
    failure(openai.NotFoundError, lambda: connect(target, model="no/such").chat(user(ask("hello"))))


@matrix.check("retries")
def retries(target: Target) -> None:
    failure(openai.InternalServerError, lambda: connect(target).chat(user(ask("busy", times=1))))
    answer = connect(target, max_retries=2).chat(user(ask("busy", times=1, other=1)))
    equal(answer.message.content, lines.HELLO)


matrix.lacks("Tries again after every 500, whatever `x-should-retry` says.", "server-error")


@matrix.check("broken-stream")
def broken_stream(target: Target) -> None:
    failure(openai.APIError, lambda: list(connect(target).stream_chat(user(ask("broken")))))


@matrix.check("timeout")
def timeout(target: Target) -> None:
    model = connect(target, timeout=SHORT_S)
    failure(openai.APITimeoutError, lambda: model.chat(user(ask("hang"))))
    target.wait_until_idle()
    error = failure(Exception, lambda: list(model.stream_chat(user(ask("hang")))))
    assert "Timeout" in type(error).__name__, error


@matrix.check("abort")
def abort(target: Target) -> None:
    parts = connect(target, max_tokens=10_000).stream_chat(user(ask("endless")))
    for _ in range(5):
        next(parts)
    del parts
    gc.collect()  # closing them leaves the connection open until nobody holds it
    target.wait_until_idle()


matrix.lacks("Has no command line.", "command")


def real(target: Target) -> Any:
    """A model of the real server."""
    return OpenAILike(
        model=target.real_model,
        api_base=target.real_url,
        api_key="none",
        is_chat_model=True,
        temperature=0,
        max_tokens=MODEL_MAX_TOKENS,
    )


@matrix.check("real-chat")
def real_chat(target: Target) -> None:
    assert "Paris" in real(target).complete(QUESTION).text


@matrix.check("real-stream")
def real_stream(target: Target) -> None:
    assert "Paris" in "".join(part.delta for part in real(target).stream_complete(QUESTION))


if __name__ == "__main__":
    matrix.run()
