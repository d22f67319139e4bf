"""How families of models write calls: one class each. All of them also take bare and fenced JSON, which small models
write in place of their own markers."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Literal

from extensions.parsing.call_regions import FenceRegion, ListRegion, MarkedRegion
from extensions.parsing.json_region import JsonRegion
from extensions.parsing.regions import Region

FENCE = "```"
FormatName = Literal["hermes", "llama3_json", "llama_pythonic", "mistral", "smollm2", "generic"]
FormatChoice = Literal["auto", "hermes", "llama3_json", "llama_pythonic", "mistral", "smollm2", "generic"]


class ToolFormat:
    """A family's way of writing calls; this one is the generic way, a JSON object for each call.

    Attributes:
        name: As in the settings.
        markers: Texts that announce calls anywhere.
        line_openers: What calls may begin with at the beginning of a line.
        arguments_key: What the family calls a call's arguments.
        arguments_marker: Text between a name and arguments, for families that write calls so; else empty.
        is_pythonic: Calls may be in Python's spelling.
    """

    name: ClassVar[FormatName] = "generic"
    markers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    line_openers: ClassVar[tuple[str, ...]] = ("{", "[", FENCE)
    arguments_key: ClassVar[str] = "arguments"
    closer: ClassVar[str] = "</tool_call>"
    arguments_marker: ClassVar[str] = ""
    is_pythonic: ClassVar[bool] = False

    @property
    def special_markers(self) -> tuple[str, ...]:
        """Those of the format's markers that must be seen even if they are special tokens."""
        return (*self.markers, self.closer)

    def open(self, opener: str, names: Collection[str]) -> Region:
        """What reads on from an opener; one at the beginning of a line is its first text, a marker is not."""
        if opener in self.markers:
            return self.open_marked(opener, names)
        if opener == FENCE:
            return FenceRegion(names, FENCE)
        if opener == "[":
            return ListRegion(names, (self.closer,))
        return JsonRegion(names, (self.closer,), is_marked=False)

    def open_marked(self, marker: str, names: Collection[str]) -> Region:
        """What reads on from one of the format's own markers."""
        return JsonRegion(names, (self.closer,), self.markers, is_marked=True)

    def write_calls(self, calls: Sequence[dict[str, Any]]) -> str:
        """Calls as the model would have written them, for templates that cannot show any.

        Args:
            calls: Each with `name` and `arguments`.
        """
        return "\n".join(json.dumps(self._call(call), ensure_ascii=False) for call in calls)

    def instructions(self, tools: Sequence[dict[str, Any]]) -> str:
        """What tells the model of its tools when the chat template does not."""
        example = f'{{"name": <function name>, "{self.arguments_key}": <arguments as a JSON object>}}'
        return _INSTRUCTIONS.format(tools=_listed(tools), example=example)

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        return {"name": call["name"], self.arguments_key: call["arguments"]}


class HermesFormat(ToolFormat):
    """Hermes, Qwen and many others: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call."""

    name = "hermes"

    def write_calls(self, calls: Sequence[dict[str, Any]]) -> str:
        """See `ToolFormat.write_calls`."""
        return "\n".join(
            f"<tool_call>\n{super(HermesFormat, self).write_calls([call])}\n</tool_call>" for call in calls
        )

    def instructions(self, tools: Sequence[dict[str, Any]]) -> str:
        """See `ToolFormat.instructions`."""
        return _MARKED.format(tools=_listed(tools), call='{"name": <function name>, "arguments": <arguments object>}')


class SmolLM2Format(ToolFormat):
    """SmolLM2: one `<tool_call>[{"name": …, "arguments": {…}}, …]</tool_call>` for all calls."""

    name = "smollm2"

    def write_calls(self, calls: Sequence[dict[str, Any]]) -> str:
        """See `ToolFormat.write_calls`."""
        listed = json.dumps([self._call(call) for call in calls], ensure_ascii=False)
        return f"<tool_call>{listed}</tool_call>"

    def instructions(self, tools: Sequence[dict[str, Any]]) -> str:
        """The text that the model was trained with, but for its last sentence."""
        return _SMOLLM2.format(tools=json.dumps([tool["function"] for tool in tools], ensure_ascii=False))


class Llama3JsonFormat(ToolFormat):
    """Llama 3.1 and later: `{"name": …, "parameters": {…}}`, perhaps after `<|python_tag|>`."""

    name = "llama3_json"
    markers = ("<|python_tag|>",)
    arguments_key = "parameters"
    closer = "<|eom_id|>"

    @property
    def special_markers(self) -> tuple[str, ...]:
        """See `ToolFormat.special_markers`."""
        return self.markers

    def open_marked(self, marker: str, names: Collection[str]) -> Region:
        """See `ToolFormat.open_marked`."""
        return MarkedRegion(names, self.closer, _NAME)


class LlamaPythonicFormat(ToolFormat):
    """Llama 3.2 and 4: `[get_weather(city="Oslo"), get_time()]`."""

    name = "llama_pythonic"
    markers = ("<|python_start|>", "<|python_tag|>")
    closer = "<|python_end|>"
    is_pythonic = True

    def open_marked(self, marker: str, names: Collection[str]) -> Region:
        """See `ToolFormat.open_marked`."""
        return MarkedRegion(names, self.closer, _NAME)

    def write_calls(self, calls: Sequence[dict[str, Any]]) -> str:
        """See `ToolFormat.write_calls`."""
        return "[" + ", ".join(map(_python_call, calls)) + "]"

    def instructions(self, tools: Sequence[dict[str, Any]]) -> str:
        """See `ToolFormat.instructions`."""
        return _INSTRUCTIONS.format(tools=_listed(tools), example="[function_name(argument=value, …), …]")


class MistralFormat(ToolFormat):
    """Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, later `[TOOL_CALLS]name[ARGS]{…}`."""

    name = "mistral"
    markers = ("[TOOL_CALLS]",)
    closer = "[/TOOL_CALLS]"
    arguments_marker = "[ARGS]"

    @property
    def special_markers(self) -> tuple[str, ...]:
        """See `ToolFormat.special_markers`."""
        return (*super().special_markers, "[ARGS]", "[CALL_ID]")

    def open_marked(self, marker: str, names: Collection[str]) -> Region:
        """See `ToolFormat.open_marked`."""
        return MarkedRegion(names, self.closer, _MISTRAL_HEAD)

    def write_calls(self, calls: Sequence[dict[str, Any]]) -> str:
        """See `ToolFormat.write_calls`."""
        return "[TOOL_CALLS] " + json.dumps([self._call(call) for call in calls], ensure_ascii=False)


FORMATS: dict[FormatName, ToolFormat] = {
    one.name: one
    for one in (
        HermesFormat(), Llama3JsonFormat(), LlamaPythonicFormat(), MistralFormat(), SmolLM2Format(), ToolFormat(),
    )
}  # fmt: skip
"""All of them by name."""

_NAME = re.compile(r"\s*(?P<name>[A-Za-z0-9_-]+)\s*")
_MISTRAL_HEAD = re.compile(r"\s*(?P<name>[A-Za-z0-9_-]+)\s*(\[CALL_ID\]\s*[A-Za-z0-9]*\s*)?(\[ARGS\])?\s*")

_INSTRUCTIONS = """You can call these functions:
{tools}

To call functions, answer with one line for each call and nothing else:
{example}
If no function is needed, answer in plain text."""

_MARKED = """You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a JSON object with the function's name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{call}
</tool_call>"""

_SMOLLM2 = """You are an expert in composing functions. You are given a question and a set of possible functions. \
Based on the question, you will need to make one or more function/tool calls to achieve the purpose. If none of the \
functions can be used, point it out and refuse to answer. If the given question lacks the parameters required by the \
function, also point it out.

You have access to the following tools:
<tools>{tools}</tools>

The output MUST strictly adhere to the following format, and NO other text MUST be included. \
The example format is as follows. Please make sure the parameter type is correct. If no function call is needed, \
answer in plain text instead.
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},
... (more tool calls as required)
]</tool_call>"""


def _listed(tools: Sequence[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)


def _python_call(call: dict[str, Any]) -> str:
    arguments = call["arguments"]
    if not isinstance(arguments, dict):
        return f"{call['name']}({arguments})"
    return f"{call['name']}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
