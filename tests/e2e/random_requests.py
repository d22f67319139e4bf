"""Random requests with whatever shapes an answer, and what clients read out of the answers, streamed or whole."""

from __future__ import annotations

import random
from typing import Any

from tests.gateway.responses.wire import RESPONSES, ask
from tests.gateway.wire import CHAT, TEXT, Body, chat, text

WEATHER: Body = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 99}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
LIGHT: Body = {
    "name": "set_light",
    "parameters": {
        "type": "object",
        "properties": {"on": {"type": ["boolean", "null"]}, "rgb": {"type": "array", "items": {"enum": [0, 255]}}},
        "required": ["on", "rgb"],
        "additionalProperties": False,
    },
}
SCHEMA: Body = {
    "type": "object",
    "properties": {"who": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}, "ok": {"enum": [True, None]}},
    "required": ["who"],
    "additionalProperties": False,
}
CALL = r'<tool_call>\n\{"name": "(get_weather|nobody)", "arguments": \{"city": "[a-z]{0,6}"\}\}\n</tool_call>'
REGEXES = (
    r"<think>[a-z ]{1,20}</think>[a-zé🚀 ]{1,20}",
    r"<think>[a-z ]{1,20}",
    r"(<think>[ab]{0,5}</think>)?" + CALL,
    rf"[a-c]{{0,9}}{CALL}( {CALL})?[x-z]{{0,3}}",
    r'\{"name": "set_light", "parameters": \{"on": (true|null), "rgb": \[(0|255)\]\}\}',
    r"```json\n\{\"name\": \"get_weather\", \"arguments\": \{\}\}\n```",
    r"[0-9]{1,9}<[/a-z]{1,9}>",
)
"""Texts that look like thinking and calls, whole and broken: a model of random weights would write none by itself."""


def random_request(rng: random.Random, path: str) -> Body:
    """A request to one of the endpoints, with a seed."""
    words = [rng.choice(["the", "capital", "of", "日本", "🚀", "def", "1,", "\n"]) for _ in range(rng.randrange(1, 60))]
    max_tokens = rng.randrange(1, 60)
    possible: dict[str, Any] = {
        "stop": rng.sample(["e", "th", "\n", "ing", "or", "zzz", "\ufffd", "</", '"'], 2),
        "include_stop_str_in_output": True,
        "top_p": rng.choice([0, 0.1, 0.9]),
        "top_k": rng.choice([-1, 1, 40]),
        "min_p": rng.choice([0.05, 1]),
        "presence_penalty": rng.uniform(-2, 2),
        "repetition_penalty": rng.choice([0.5, 1.3]),
        "logit_bias": {str(rng.randrange(512)): rng.choice([-100, 5])},
        "min_tokens": rng.randrange(max_tokens + 1),
        "bad_words": ["the", "a"],
        "skip_special_tokens": False,
        "ignore_eos": True,
    }
    fields = {name: value for name, value in possible.items() if rng.random() < 0.3}
    fields |= {"seed": rng.randrange(-(2**63), 2**63), "temperature": rng.choice([0, 0.3, 1, 1.5, 2])}
    if rng.random() < 0.5:
        # Forced text has its own end, and what a bias or a ban leaves of it may be nothing.
        fields = {name: fields[name] for name in ("stop", "seed", "temperature", "top_k") if name in fields}
        max_tokens += rng.choice([0, 60])
        fields |= _form(rng, path)
    # Tools fill most of a prompt.
    prompt = " ".join(words[:8] if "tools" in fields else words)
    if path == RESPONSES:
        return ask(input=prompt, store=False, max_output_tokens=max_tokens, **fields, **_logged(rng))
    fields |= {"max_tokens": max_tokens, "return_token_ids": True}
    if rng.random() < 0.3:
        fields["n"] = rng.randrange(1, 4)
    if path == CHAT:
        messages = [{"role": "user", "content": prompt}]
        return chat(messages=messages, logprobs=True, top_logprobs=rng.randrange(4), **fields)
    prompts: str | list[str] = [prompt, "hi"] if rng.random() < 0.3 else prompt
    return text(prompt=prompts, logprobs=rng.randrange(4), echo=rng.random() < 0.3, **fields)


def _form(rng: random.Random, path: str) -> Body:
    """What binds the text, with tools beside it in half of the cases."""
    if path == RESPONSES:
        form = rng.choice([{"type": "json_object"}, {"type": "json_schema", "name": "x", "schema": SCHEMA}, None])
        fields: Body = {} if form is None else {"text": {"format": form}}
        tools: list[Body] = [{"type": "function", **WEATHER}, {"type": "function", **LIGHT}]
    else:
        fields = rng.choice(
            [
                {"response_format": {"type": "json_object"}},
                {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
                {"structured_outputs": {"choice": ["yes 👩‍🚀", "no"]}},
                {"structured_outputs": {"regex": rng.choice(REGEXES)}},
                {"structured_outputs": {"regex": rng.choice(REGEXES)}},
            ]
        )
        tools = [{"type": "function", "function": function} for function in (WEATHER, LIGHT)]
    if path == TEXT or rng.random() < 0.3:
        return fields
    choice = rng.choice(["auto", "auto", "required"])
    return {**fields, "tools": tools, "tool_choice": choice, "parallel_tool_calls": rng.random() < 0.7}


def _logged(rng: random.Random) -> Body:
    return {"top_logprobs": rng.randrange(3), "include": ["message.output_text.logprobs"]} if rng.random() < 0.5 else {}


def summed(parts: list[Body]) -> dict[int, Body]:
    """The choices that chunks add up to; a choice must end once and say nothing after its end."""
    choices: dict[int, Body] = {}
    for choice in (choice for chunk in parts for choice in chunk["choices"]):
        so_far = choices.setdefault(choice["index"], _choice())
        assert so_far["end"] is None
        delta = choice.get("delta", choice)
        so_far["text"] += delta.get("text") or delta.get("content") or ""
        so_far["thought"] += delta.get("reasoning", "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(so_far["calls"]):
                so_far["calls"].append([call["function"]["name"], ""])
            so_far["calls"][call["index"]][1] += call["function"]["arguments"]
        so_far["tokens"] += entries(choice["logprobs"])
        so_far["ids"] += choice.get("token_ids") or []
        so_far["end"], so_far["reason"] = choice["finish_reason"], choice.get("stop_reason")
    return choices


def answered(answer: Body) -> dict[int, Body]:
    """The same of a whole answer."""
    choices = {}
    for choice in answer["choices"]:
        message = choice.get("message", choice)
        calls = [call["function"] for call in message.get("tool_calls", ())]
        choices[choice["index"]] = {
            "text": message.get("text") or message.get("content") or "",
            "thought": message.get("reasoning", ""),
            "calls": [[call["name"], call["arguments"]] for call in calls],
            "tokens": entries(choice["logprobs"]),
            "ids": choice["token_ids"],
            "end": choice["finish_reason"],
            "reason": choice["stop_reason"],
        }
    return choices


def _choice() -> Body:
    return {"text": "", "thought": "", "calls": [], "tokens": [], "ids": [], "end": None, "reason": None}


def entries(logprobs: Body | None) -> list[Any]:
    """Positions of a logprobs object, without the numbers: their last bits depend on how steps were composed."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return [(entry["token"], entry["bytes"], len(entry["top_logprobs"])) for entry in logprobs["content"] or []]
    return list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))


def told(events: list[Body]) -> Body:
    """What the deltas of a streamed response add up to, and what its last event says."""
    items: list[list[Any]] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            items.append([event["item"]["type"], event["item"].get("name"), "", []])
        elif event["type"].endswith(".delta"):
            items[event["output_index"]][2] += event["delta"]
            items[event["output_index"]][3] += entries({"content": event.get("logprobs", [])})
    last = shown(events[-1]["response"])
    assert last["items"] == items
    return last


def shown(response: Body) -> Body:
    """The same of a response that was answered whole."""
    return {
        "items": [_item(item) for item in response["output"]],
        "status": response["status"],
        "why": response["incomplete_details"],
        "num_tokens": response["usage"]["output_tokens"],
        "num_thought": response["usage"]["output_tokens_details"]["reasoning_tokens"],
    }


def _item(item: Body) -> list[Any]:
    if item["type"] == "function_call":
        return [item["type"], item["name"], item["arguments"], []]
    (part,) = item["content"]
    return [item["type"], None, part["text"], entries({"content": part.get("logprobs", [])})]
