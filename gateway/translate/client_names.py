"""Fields of the chat request that a request comes down to, as its client calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from engine.errors import InvalidRequest
from gateway.errors import GatewayError
from gateway.schemas.responses import FunctionTool, PromptFields
from gateway.translate.chat_work import ChatWork

_NAMES = {
    "messages": "input",
    "prompt_ids": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""A chat request's fields and what clients of the Responses API call them."""

_TOOL = re.compile(r"tools\[([0-9]+)\](.*)")


@contextmanager
def renamed(rename: Callable[[str], str]) -> Iterator[None]:
    """What is raised inside about a field names it by another name.

    Raises:
        GatewayError: As raised inside, with another `param`.
        InvalidRequest: As raised inside, with another `param`.
    """
    try:
        yield
    except (GatewayError, InvalidRequest) as error:
        if error.param is not None and (name := rename(error.param)) != error.param:
            error.message = error.message.replace(f"'{error.param}'", f"'{name}'")
            error.param = name
        raise


@contextmanager
def client_names(body: PromptFields) -> Iterator[None]:
    """What is raised inside about a chat request's field names the field of the response that the client sent."""
    with renamed(lambda param: response_name(param, body)):
        yield


def own_name(param: str, num_tools: int) -> str:
    """What a client of chats calls a field: a tool of the server's, behind the client's own, is of `server_tools`."""
    tool = _TOOL.fullmatch(param)
    return param if tool is None or int(tool[1]) < num_tools else "server_tools"


def response_name(param: str, body: PromptFields) -> str:
    """What a client of the Responses API calls a chat request's field."""
    if param in _NAMES:
        return _NAMES[param]
    if (tool := _TOOL.fullmatch(param)) is not None:
        # Servers are among the client's tools, and what they offer is behind the chat's.
        places = [place for place, one in enumerate(body.tools) if isinstance(one, FunctionTool)]
        number = int(tool[1])
        return f"tools[{places[number]}]{tool[2].replace('.function', '', 1)}" if number < len(places) else "tools"
    if param.startswith("tool_choice."):
        return param.replace(".function.", ".")
    return _NAMES.get(re.split(r"[.\[]", param)[0], param)


def renamed_work(work: ChatWork, rename: Callable[[str], str]) -> ChatWork:
    """The same work, whose constraint blames fields by other names: the engine compiles it only later."""
    constraint = work.options.constraint
    if constraint is None:
        return work
    named = msgspec.structs.replace(
        constraint,
        param=rename(constraint.param),
        schema_params=tuple(map(rename, constraint.schema_params)),
    )
    return replace(work, options=replace(work.options, constraint=named))
