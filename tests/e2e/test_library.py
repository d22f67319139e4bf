"""Every program that comes with the server runs on the real model and does what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from extensions.library import shipped_names, shipped_source
from loadtests.server import RunningServer

pytestmark = pytest.mark.real_model

Body = dict[str, Any]

FORM = {
    "type": "object",
    "properties": {"river": {"type": "string", "maxLength": 20}, "long": {"type": "boolean"}},
    "required": ["river", "long"],
    "additionalProperties": False,
}


def usage(answer: Body) -> Body:
    found: Body = answer["extension"]["usage"]
    return found


def text(answer: Body) -> str:
    found: str = answer["choices"][0]["message"]["content"]
    return found


def result(answer: Body) -> Any:
    return answer["extension"]["result"]


def shares_its_prompt(answer: Body, num_branches: int) -> bool:
    """The prompt was computed about once, not once a branch."""
    return bool(usage(answer)["contexts"] > num_branches and usage(answer)["prompt_tokens"] < 60 + 24 * num_branches)


CASES: dict[str, tuple[Body, Callable[[Body], bool]]] = {
    "best_of_n": ({"n": 3, "max_tokens": 12}, lambda one: shares_its_prompt(one, 3) and bool(text(one))),
    "constrained_grammar": (
        {"grammar": 'start: ("yes" | "no") " " /[a-z]{3}/'},
        lambda one: text(one)[:3] in ("yes", "no ") and len(text(one).split()[1]) == 3,
    ),
    "graph_of_thought": ({"thoughts": 3, "max_tokens": 12}, lambda one: usage(one)["generations"] == 3 + 2 + 1),
    "json_extract": ({"schema": FORM}, lambda one: result(one)["object"].keys() == {"river", "long"}),
    "mcts": (
        {"rounds": 3, "step_tokens": 6, "answer_tokens": 8},
        lambda one: bool(text(one)) and usage(one)["generations"] >= 3 * 2 + 2,
    ),
    "prefix_tree": (
        {"questions": ["Where?", "Why?"], "follow_up": "Are you sure?", "max_tokens": 6},
        lambda one: (
            [part["question"] for part in result(one)] == ["Where?", "Why?"]
            and all(part["answer"] and part["follow_up"] for part in result(one))
        ),
    ),
    "reflexion": (
        {"trials": 2, "max_tokens": 10, "must_match": "never said"},
        lambda one: usage(one)["generations"] == 4,
    ),
    "self_consistency": ({"n": 2, "max_tokens": 16}, lambda one: text(one).lstrip("-").isdigit()),
    "self_correct": (
        {"forbid": "France", "sentences": 2, "max_tokens": 24},
        lambda one: "France" not in text(one) and len(result(one)["sentences"]) <= 2,
    ),
    "skeleton_of_thought": (
        {"points": 2, "point_tokens": 8},
        lambda one: text(one).startswith("1. ") and "2. " in text(one),
    ),
    "swarm": ({"rounds": 2, "max_tokens": 8}, lambda one: usage(one)["generations"] == 2 * 2 + 1),
    "tree_of_thought": (
        {"depth": 2, "breadth": 1, "thoughts": 2, "step_tokens": 8, "answer_tokens": 8},
        lambda one: usage(one)["generations"] == 2 * (2 + 2) + 1,
    ),
}


def test_every_program_has_a_case_and_says_what_it_follows() -> None:
    assert tuple(sorted(CASES)) == shipped_names()
    for name in shipped_names():
        assert "arXiv" in shipped_source(name), name


@pytest.mark.parametrize("name", CASES)
def test_it_runs_and_does_what_it_says(real_server: RunningServer, name: str) -> None:
    args, holds = CASES[name]
    body = {
        "messages": [{"role": "user", "content": "Name a river in France and say why it is well known."}],
        "extension": {"name": f"{name}@1", "args": args},
    }
    answer = httpx.post(f"{real_server.url}/chat/completions", json=body, timeout=200)
    assert answer.status_code == 200, answer.text
    assert holds(answer.json()), json.dumps(answer.json(), indent=2)
