"""Scripts of a model that calls tools, and readers of what it was told."""

from __future__ import annotations

import json
from typing import Any

from engine.request import GenerateRequest
from engine.text.model import TextModel
from tests.fakes import Action, Script, ScriptedEngine


def call(name: str, **arguments: Any) -> str:
    """A call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def says_in_turn(model: TextModel, *texts: str) -> Script:
    """A script that says one text a request; the last one again and again."""
    rounds = iter(range(len(texts)))
    last = len(texts) - 1

    def script(request: GenerateRequest, index: int) -> list[Action]:
        ids = model.tokenizer.encode(texts[next(rounds, last)], add_special=False)
        return [ids[at : at + 3] for at in range(0, len(ids), 3)]

    return script


def prompts(engine: ScriptedEngine, model: TextModel) -> list[str]:
    """What the model was given, each time."""
    return [model.tokenizer.decode(one.prompt_ids, skip_special=False) for one in engine.requests]
