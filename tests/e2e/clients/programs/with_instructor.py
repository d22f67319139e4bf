"""Instructor: values of Pydantic models out of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import instructor
from instructor.core import exceptions
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field, create_model

from tests.e2e.clients.programs import lines
from tests.e2e.clients.programs.harness import SHORT_S, Matrix, Target, equal, failure
from tests.e2e.clients.programs.lines import ask

matrix = Matrix("instructor")
Mode = instructor.Mode


class Person(BaseModel):
    """What `person` says."""

    name: str
    age: int


class ShortPerson(BaseModel, extra="forbid"):
    """What even a small model comes to the end of."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


# The tool is called as the class is.
Weather: Any = create_model("get_weather", city=(str, ...), days=(int, ...))
Time: Any = create_model("get_time", zone=(str, ...))


def connect(target: Target, mode: Any = Mode.TOOLS, **options: Any) -> Any:
    """A client of the scripted server, without retries."""
    client = OpenAI(**{"base_url": target.url, "api_key": target.key, "max_retries": 0, **options})
    return instructor.from_openai(client, mode=mode)


def given(target: Target, prompt: str, **options: Any) -> dict[str, Any]:
    """Arguments of every call."""
    asked = {"model": target.model, "messages": [{"role": "user", "content": prompt}], "max_retries": 1}
    return {**asked, **options}


def create(target: Target, prompt: str, kind: Any = Person, *, mode: Any = Mode.TOOLS, **options: Any) -> Any:
    """One value out of a chat."""
    chat = connect(target, mode).chat.completions
    return chat.create(response_model=kind, **given(target, prompt, **options))


@matrix.check("chat")
def chat(target: Target) -> None:
    equal(create(target, ask("hello"), None).choices[0].message.content, lines.HELLO)


@matrix.check("history")
def history(target: Target) -> None:
    chat = connect(target).chat.completions
    found = chat.create(response_model=None, model=target.model, messages=lines.history())
    equal(found.choices[0].message.content, lines.OBEYED)


@matrix.check("async")
async def side_by_side(target: Target) -> None:
    client = instructor.from_openai(AsyncOpenAI(base_url=target.url, api_key=target.key), mode=Mode.TOOLS)
    calls = (client.chat.completions.create(response_model=Person, **given(target, ask("person"))) for _ in range(8))
    equal([found.model_dump() for found in await asyncio.gather(*calls)], [lines.PERSON] * 8)


@matrix.check("forced-tool")
def forced_tool(target: Target) -> None:
    for mode in (Mode.TOOLS, Mode.TOOLS_STRICT):
        equal(create(target, ask("person"), mode=mode).model_dump(), lines.PERSON)


@matrix.check("parallel-tools")
def parallel_tools(target: Target) -> None:
    found = create(target, ask("parallel"), Iterable[Weather | Time], mode=Mode.PARALLEL_TOOLS)
    equal([value.model_dump() for value in found], [lines.WEATHER, lines.TIME])


@matrix.check("structured")
def structured(target: Target) -> None:
    for mode in (Mode.JSON, Mode.JSON_SCHEMA, Mode.MD_JSON):
        equal(create(target, ask("person"), mode=mode).model_dump(), lines.PERSON)


@matrix.check("structured-stream")
def structured_stream(target: Target) -> None:
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        for size in (1, 4):
            partials = connect(target, mode).chat.completions.create_partial(
                response_model=Person, **given(target, ask("person", size=size))
            )
            *_, last = partials
            equal(last.model_dump(), lines.PERSON)


@matrix.check("responses")
def responses(target: Target) -> None:
    equal(create(target, ask("person"), mode=Mode.RESPONSES_TOOLS).model_dump(), lines.PERSON)


@matrix.check("bad-request")
def bad_request(target: Target) -> None:
    error = failure(exceptions.InstructorRetryException, lambda: create(target, ask("person"), temperature=3))
    assert "temperature" in str(error)


@matrix.check("timeout")
def timeout(target: Target) -> None:
    failure(Exception, lambda: create(target, ask("hang"), timeout=SHORT_S))
    target.wait_until_idle()


matrix.lacks(
    "Leaves this to the client that it wraps.",
    "stream", "stream-usage", "choices", "logprobs", "thinking", "tools", "tools-stream", "completions", "embeddings",
    "batches", "responses-stream", "responses-tools", "responses-state", "models", "too-long", "wrong-key",
    "unknown-model", "retries", "server-error", "broken-stream", "abort",
)  # fmt: skip
matrix.lacks("Has no command line for answers.", "command")
matrix.lacks("Asks for values, which is tried with exact answers.", "real-stream")


@matrix.check("real-chat")
def real_chat(target: Target) -> None:
    client = OpenAI(base_url=target.real_url, api_key="none")
    found: Any = instructor.from_openai(client, mode=Mode.JSON_SCHEMA).chat.completions.create(
        model=target.real_model,
        messages=[{"role": "user", "content": "Jason is 25 years old."}],
        response_model=ShortPerson,
        temperature=0,
        max_tokens=64,
    )
    assert isinstance(found, ShortPerson), found


if __name__ == "__main__":
    matrix.run()
