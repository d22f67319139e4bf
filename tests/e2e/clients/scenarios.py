"""An engine that says what a prompt asks it to say: `[[weather size=3]]` calls a tool, three tokens an event.

Scenarios:
    hello: A sentence with characters of several tokens.
    choices: Each sequence tells its number.
    think: Thinking, then `hello`.
    weather, parallel: One call or two; once the results stand in the prompt, the answer.
    person: A JSON object; as arguments where a call is forced.
    recall: Whether `hello` was said before.
    obey: Whether the prompt holds instructions too.
    busy: Refused `times` times as a full queue is, then `hello`.
    crash: Fails as a bug does.
    broken: A few tokens, then the engine stops.
    hang: Nothing, for ever.
    endless: Tokens, for ever.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from llguidance import LLMatcher

from engine.constraints.grammar import to_grammar
from engine.constraints.vocabulary import byte_tokenizer
from engine.errors import EngineStopped, InvalidRequest, QueueFull
from engine.request import GenerateRequest
from engine.text.model import TextModel
from tests.e2e.clients.programs import lines
from tests.fakes import Action, Script, ScriptedEngine, ScriptedStream

MAX_MODEL_LEN = 16_384
NUM_CACHED_TOKENS = 3

_NAMED = re.compile(r"\[\[(?P<name>[a-z]+)(?P<options>(?: [a-z]+=\d+)*)\]\]")
_FORCED_NAME = re.compile(r'^call_0: "\{\\"name\\": \\"(?P<name>[A-Za-z0-9_-]+)\\"', re.MULTILINE)
_SLEEP_S = 3600.0


class DirectedEngine(ScriptedEngine):
    """Follows the scenario that is named last in a prompt.

    Attributes:
        faults: What went wrong that clients cannot tell: text that the constraint of a request does not allow.
    """

    def __init__(self, text: TextModel) -> None:
        # A script may go on for ever, so it is no sequence.
        script = cast("Script", self._direct)
        super().__init__(text, script, max_model_len=MAX_MODEL_LEN, num_pages=MAX_MODEL_LEN)
        self._text = text
        self._refusals: Counter[str] = Counter()
        self.num_cached_tokens = NUM_CACHED_TOKENS
        self.faults: list[str] = []

    async def submit(self, request: GenerateRequest) -> ScriptedStream:
        """See `EngineClient.submit`."""
        if request.pooling is not None:
            return await super().submit(request)
        name, options, _ = self._scenario(request)
        if name == "crash":
            raise RuntimeError("a bug, as a scenario asks for")
        if name == "busy":
            key = f"busy {sorted(options.items())}"
            self._refusals[key] += 1
            if self._refusals[key] <= options["times"]:
                raise QueueFull(7)
        return await super().submit(request)

    def _scenario(self, request: GenerateRequest) -> tuple[str, dict[str, int], str]:
        """Name and options of what is asked for, and the whole prompt."""
        prompt = self._text.tokenizer.decode(request.prompt_ids)
        found = list(_NAMED.finditer(prompt))
        if not found:
            raise InvalidRequest("the prompt names no scenario", "prompt_ids")
        options = (option.split("=") for option in found[-1]["options"].split())
        return found[-1]["name"], {key: int(value) for key, value in options}, prompt

    def _direct(self, request: GenerateRequest, index: int) -> Iterator[Action]:
        name, options, prompt = self._scenario(request)
        said = SAYINGS[name](request, prompt, index)
        if name in _WHOLE:
            self._check_constraint(request, said)
        ids = self._text.tokenizer.encode(said, add_special=False)
        size = options.get("size", 1)
        for at in range(0, len(ids), size):
            yield ids[at : at + size]
        yield from _ENDINGS.get(name, _nothing)(ids)

    def _check_constraint(self, request: GenerateRequest, said: str) -> None:
        """Notes a text that an engine could not have said."""
        if request.constraint is None:
            return
        matcher = LLMatcher(byte_tokenizer(), to_grammar(request.constraint))
        data = list(said.encode())
        if matcher.try_consume_tokens(data) != len(data) or not matcher.is_accepting():
            self.faults.append(f"{said!r} does not fit {request.constraint}: {matcher.get_error()}")


def _nothing(ids: Sequence[int]) -> Iterator[Action]:
    yield from ()


def _stop(ids: Sequence[int]) -> Iterator[Action]:
    yield EngineStopped("the engine process ended")


def _hang(ids: Sequence[int]) -> Iterator[Action]:
    yield _SLEEP_S


def _go_on(ids: Sequence[int]) -> Iterator[Action]:
    while True:
        yield 0.005
        yield ids[:1]


def _forced_name(request: GenerateRequest) -> str | None:
    """The first tool of which a call is forced."""
    if request.constraint is None or request.constraint.frame:
        return None
    found = _FORCED_NAME.search(request.constraint.source)
    return None if found is None else found["name"]


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def _marked(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def _forced(request: GenerateRequest, name: str, arguments: Mapping[str, Any]) -> str:
    assert request.constraint is not None
    call = _call(name, arguments)
    return f"[{call}]" if request.constraint.source.startswith('start: "["') else call


def _weather(request: GenerateRequest, prompt: str, index: int) -> str:
    if lines.DEGREES in prompt:
        return lines.FORECAST
    name = _forced_name(request)
    return _marked(_call("get_weather", lines.WEATHER)) if name is None else _forced(request, name, lines.WEATHER)


def _parallel(request: GenerateRequest, prompt: str, index: int) -> str:
    if lines.DEGREES in prompt and lines.CLOCK in prompt:
        return lines.BOTH
    return _marked(_call("get_weather", lines.WEATHER), _call("get_time", lines.TIME))


def _person(request: GenerateRequest, prompt: str, index: int) -> str:
    name = _forced_name(request)
    if name is not None:
        return _forced(request, name, lines.PERSON)
    return json.dumps(lines.PERSON, ensure_ascii=False)


def _recall(request: GenerateRequest, prompt: str, index: int) -> str:
    return lines.RECALLED if lines.HELLO in prompt else lines.FORGOT


def _obey(request: GenerateRequest, prompt: str, index: int) -> str:
    before, _, _ = prompt.partition(lines.HELLO)
    return lines.OBEYED if lines.INSTRUCTIONS in before and before != prompt else lines.FORGOT


def _always(said: str) -> Callable[[GenerateRequest, str, int], str]:
    return lambda request, prompt, index: said


SAYINGS: Mapping[str, Callable[[GenerateRequest, str, int], str]] = {
    "hello": _always(lines.HELLO),
    "busy": _always(lines.HELLO),
    "choices": lambda request, prompt, index: f"Choice {index}.",
    "think": _always(f"<think>{lines.THOUGHT}</think>\n\n{lines.HELLO}"),
    "weather": _weather,
    "parallel": _parallel,
    "person": _person,
    "recall": _recall,
    "obey": _obey,
    "broken": _always(lines.FIRST_TOKENS),
    "endless": _always(lines.FIRST_TOKENS),
    "hang": _always(""),
}
"""What each scenario says."""

_ENDINGS: Mapping[str, Callable[[Sequence[int]], Iterator[Action]]] = {
    "broken": _stop,
    "hang": _hang,
    "endless": _go_on,
}
_WHOLE = frozenset({"weather", "parallel", "person"})
