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

QUESTION = "Name a river in France and say why it is well known."

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


def draws(answer: Body) -> bool:
    """A device program drew as many tokens as were asked for."""
    extension = answer["extension"]
    return bool(extension["exec_path"] == "device" and usage(answer)["completion_tokens"] == 12 and text(answer))


def stays_small(answer: Body) -> bool:
    """The history grows by page after page, what it holds does not."""
    sizes: list[int] = result(answer)["bytes"]
    return len(sizes) > 6 and max(sizes[4:]) <= max(sizes[:4]) and result(answer)["length"] > 130


MODULES = {
    "anna": "Anna lives in Lyon, near the river, and likes to swim every morning before work.",
    "bert": "Bert lives in Paris and never swims, but plays the piano in the evening.",
}

CASES: dict[str, tuple[Body, Callable[[Body], bool]]] = {
    "async_tools": (
        {"tools": ["rainfall"], "max_tokens": 24, "stride": 4},
        lambda one: (
            result(one)["calls"] == ["rainfall"]
            and [found["name"] for found in result(one)["injected"]] == ["rainfall"]
            and json.loads(result(one)["injected"][0]["answer"])["mm"] == 42
            and usage(one)["tool_calls"] == 1
            and bool(text(one))
        ),
    ),
    "attention_sink": (
        {"window": 32, "stride": 12, "max_tokens": 96, "temperature": 1.0, "seed": 7},
        stays_small,
    ),
    "h2o": (
        {"budget": 64, "recent": 24, "stride": 12, "max_tokens": 96, "temperature": 1.0, "seed": 7},
        lambda one: stays_small(one) and result(one)["kept"] <= 96,
    ),
    "snapkv": (
        {"budget": 16, "window": 8, "max_tokens": 12},
        lambda one: (
            bool(text(one))
            and result(one)["kept"] < result(one)["length"]
            and result(one)["bytes"][1] < result(one)["bytes"][0]
        ),
    ),
    "tova": (
        {"budget": 48, "stride": 12, "max_tokens": 96, "temperature": 1.0, "seed": 7},
        lambda one: stays_small(one) and result(one)["kept"] <= 64,
    ),
    "quest": (
        {"budget": 48, "stride": 12, "max_tokens": 96, "temperature": 1.0, "seed": 7},
        lambda one: (
            stays_small(one) and max(result(one)["bytes"]) < result(one)["all"] and usage(one)["generations"] == 8
        ),
    ),
    "beam_search": (
        {"beams": 3, "max_tokens": 8},
        lambda one: (
            len({beam["text"] for beam in result(one)["beams"]}) == 3
            and [beam["score"] for beam in result(one)["beams"]]
            == sorted((beam["score"] for beam in result(one)["beams"]), reverse=True)
            and text(one) == result(one)["beams"][0]["text"]
            and usage(one)["prompt_tokens"] < 100
        ),
    ),
    "best_of_n": ({"n": 3, "max_tokens": 12}, lambda one: shares_its_prompt(one, 3) and bool(text(one))),
    "classifier_free_guidance": (
        {"scale": 2.0, "max_tokens": 12, "temperature": 0.0},
        lambda one: 0 < one["usage"]["completion_tokens"] <= 12 and usage(one)["contexts"] == 2 and bool(text(one)),
    ),
    "codeact": (
        {"must_act": True, "max_steps": 2, "max_tokens": 24},
        lambda one: (
            bool(result(one)["steps"])
            and all(step["code"] and step["output"] for step in result(one)["steps"])
            and usage(one)["generations"] > len(result(one)["steps"])
        ),
    ),
    "constrained_grammar": (
        {"grammar": 'start: ("yes" | "no") " " /[a-z]{3}/'},
        lambda one: text(one)[:3] in ("yes", "no ") and len(text(one).split()[1]) == 3,
    ),
    "dry": ({"max_tokens": 12, "seed": 1}, draws),
    "entropy_temperature": ({"max_tokens": 12, "seed": 1}, draws),
    "eta_epsilon": ({"max_tokens": 12, "seed": 1}, draws),
    "context_aware_decoding": (
        {"text": "The Zorbine is the only river of France. It is well known for its green water.", "max_tokens": 24},
        lambda one: usage(one)["contexts"] == 2 and "Zorbine" in text(one),
    ),
    "contrastive_decoding": (
        {"max_tokens": 12, "alpha": 0.2},
        lambda one: usage(one)["contexts"] == 2 and bool(text(one)) and one["usage"]["completion_tokens"] <= 12,
    ),
    "graph_of_thought": ({"thoughts": 3, "max_tokens": 12}, lambda one: usage(one)["generations"] == 3 + 2 + 1),
    "gumbel_watermark": ({"max_tokens": 12, "seed": 1}, draws),
    "jacobi": (
        {"max_tokens": 12, "block": 4},
        lambda one: result(one)["tokens"] == 12 and 3 <= result(one)["rounds"] <= 12 and bool(text(one)),
    ),
    "json_extract": ({"schema": FORM}, lambda one: result(one)["object"].keys() == {"river", "long"}),
    "mcts": (
        {"rounds": 3, "step_tokens": 6, "answer_tokens": 8},
        lambda one: bool(text(one)) and usage(one)["generations"] >= 3 * 2 + 2,
    ),
    "min_p": ({"max_tokens": 12, "seed": 1}, draws),
    "mirostat": ({"max_tokens": 12, "seed": 1, "tau": 3.0}, draws),
    "modular_cache": (
        {
            "modules": MODULES,
            "questions": [
                {"uses": ["anna"], "question": "Where does Anna live?"},
                {"uses": ["anna", "bert"], "question": "Where does Anna live?"},
            ],
            "max_tokens": 6,
        },
        lambda one: (
            result(one)[0]["bytes"] < result(one)[1]["bytes"]
            and "Anna" in result(one)[0]["answer"]
            and min(part["cached"] for part in result(one)) > 60
            and usage(one)["prompt_tokens"] < 130
        ),
    ),
    "output_validation": (
        {"keys": ["river"], "attempts": 2, "max_tokens": 8},
        lambda one: (
            result(one)["valid"] is False
            and len(result(one)["problems"]) == 2
            and all("no JSON" in problem for problem in result(one)["problems"])
        ),
    ),
    "prefix_tree": (
        {"questions": ["Where?", "Why?"], "follow_up": "Are you sure?", "max_tokens": 6},
        lambda one: (
            [part["question"] for part in result(one)] == ["Where?", "Why?"]
            and all(part["answer"] and part["follow_up"] for part in result(one))
        ),
    ),
    "prompt_lookup_speculation": (
        {"max_tokens": 24},
        lambda one: result(one)["tokens"] == 24 == result(one)["passes"] + result(one)["accepted"],
    ),
    "react": (
        {"tools": ["rainfall"], "min_steps": 1, "max_steps": 2, "max_tokens": 8, "thought_tokens": 10},
        lambda one: (
            1 <= len(result(one)["steps"]) == usage(one)["tool_calls"] <= 2
            and all(
                json.loads(step["observation"]) == {"city": step["call"]["arguments"]["city"], "mm": 42}
                for step in result(one)["steps"]
            )
            and bool(text(one))
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
    "sliding_window": (
        {"window": 48, "stride": 12, "max_tokens": 96, "temperature": 1.0, "seed": 7},
        stays_small,
    ),
    "speculative_sampling": (
        {"max_tokens": 24, "seed": 1, "draft": 3},
        lambda one: (
            result(one)["tokens"] <= 24 and result(one)["drafted"] >= result(one)["accepted"] and bool(text(one))
        ),
    ),
    "swarm": ({"rounds": 2, "max_tokens": 8}, lambda one: usage(one)["generations"] == 2 * 2 + 1),
    "token_healing": (
        {"begin": "The address is http:", "max_tokens": 4},
        lambda one: text(one).startswith("//"),
    ),
    "top_a": ({"max_tokens": 12, "seed": 1}, draws),
    "tree_of_thought": (
        {"depth": 2, "breadth": 1, "thoughts": 2, "step_tokens": 8, "answer_tokens": 8},
        lambda one: usage(one)["generations"] == 2 * (2 + 2) + 1,
    ),
    "typical": ({"max_tokens": 12, "seed": 1}, draws),
    "watermark_greenlist": ({"max_tokens": 12, "seed": 1}, draws),
    "xtc": ({"max_tokens": 12, "seed": 1}, draws),
}


RAINFALL = """
async def main(request, lm):
    await lm.sleep(0.05)
    return {"city": request.args["city"], "mm": 42}
"""


@pytest.fixture(scope="module", autouse=True)
def rainfall(real_server: RunningServer) -> None:
    """A tool for the programs that call some."""
    city = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    tool = {
        "name": "rainfall",
        "kind": "script",
        "effect": "pure",
        "description": "Tells how much it rained in a city, in millimetres.",
        "parameters": {**city, "additionalProperties": False},
        "script": {"source": RAINFALL},
    }
    answer = httpx.post(f"{real_server.url}/tools", json=tool, timeout=60)
    assert answer.status_code == 200, answer.text


def test_every_program_has_a_case_and_says_what_it_follows() -> None:
    assert tuple(sorted(CASES)) == shipped_names()
    for name in shipped_names():
        assert "arXiv" in shipped_source(name), name


@pytest.mark.parametrize("name", CASES)
def test_it_runs_and_does_what_it_says(real_server: RunningServer, name: str) -> None:
    args, holds = CASES[name]
    answer = ask(real_server, name, args)
    assert holds(answer), json.dumps(answer, indent=2)


def ask(server: RunningServer, name: str | None, args: Body, question: str = QUESTION, **fields: Any) -> Body:
    """The answer of a program, or of none."""
    body: Body = {"messages": [{"role": "user", "content": question}], **fields}
    if name is not None:
        body["extension"] = {"name": f"{name}@1", "args": args}
    answer = httpx.post(f"{server.url}/chat/completions", json=body, timeout=200)
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


@pytest.mark.parametrize("watermark", ["watermark_greenlist", "gumbel_watermark"])
def test_a_detector_tells_marked_text_from_plain_text_and_from_another_secret_s(
    real_server: RunningServer, watermark: str
) -> None:
    question = "Tell a long story about a fisherman and his daughter."
    strength = {"delta": 4.0} if watermark == "watermark_greenlist" else {}
    marked = text(ask(real_server, watermark, {"max_tokens": 100, "seed": 4, "secret": 77, **strength}, question))
    plain = text(ask(real_server, None, {}, question, max_tokens=100, seed=4, temperature=1.0))
    found = [
        result(ask(real_server, watermark, {"detect": what, "secret": secret}))["z"]
        for what, secret in [(marked, 77), (plain, 77), (marked, 78)]
    ]
    assert found[0] > 5.0, found
    assert abs(found[1]) < 3.5, found
    assert abs(found[2]) < 3.5, found


def test_min_p_draws_the_tokens_of_the_server_s_own(real_server: RunningServer) -> None:
    drawn = ask(real_server, "min_p", {"max_tokens": 24, "seed": 5, "min_p": 0.08, "temperature": 1.3})
    own = ask(real_server, None, {}, max_tokens=24, seed=5, min_p=0.08, temperature=1.3)
    assert text(drawn) == text(own)


@pytest.mark.parametrize("name", ["jacobi", "prompt_lookup_speculation"])
def test_what_is_guessed_and_checked_is_what_greedy_decoding_gives(real_server: RunningServer, name: str) -> None:
    question = "Repeat this three times: the quick brown fox jumps over the lazy dog."
    guessed = ask(real_server, name, {"max_tokens": 40}, question)
    greedy = ask(real_server, None, {}, question, max_tokens=40, temperature=0)
    assert text(guessed) == text(greedy)
    passes = result(guessed)["rounds" if name == "jacobi" else "passes"]
    assert passes < greedy["usage"]["completion_tokens"]


def test_what_a_small_model_drafts_is_greedy_decoding_at_temperature_0(real_server: RunningServer) -> None:
    question = "Repeat this three times: the quick brown fox jumps over the lazy dog."
    drafted = ask(real_server, "speculative_sampling", {"max_tokens": 40, "temperature": 0}, question)
    greedy = ask(real_server, None, {}, question, max_tokens=40, temperature=0)
    assert text(drafted) == text(greedy)
    assert result(drafted)["accepted"] > 5


def test_more_beams_find_a_likelier_answer(real_server: RunningServer) -> None:
    scores = [
        result(ask(real_server, "beam_search", {"beams": beams, "max_tokens": 12}))["beams"][0]["score"]
        for beams in (1, 4)
    ]
    assert scores[1] > scores[0]


def test_dry_lowers_repetition(real_server: RunningServer) -> None:
    repeats = []
    for multiplier in (0.0, 2.0):
        args = {"max_tokens": 60, "seed": 2, "temperature": 0.05, "multiplier": multiplier}
        body = {"prompt": "The sea. The sea. The sea. The sea. The", "extension": {"name": "dry@1", "args": args}}
        answer = httpx.post(f"{real_server.url}/completions", json=body, timeout=200)
        assert answer.status_code == 200, answer.text
        repeats.append(num_repeats(answer.json()["choices"][0]["text"]))
    assert repeats[0] > 10
    assert repeats[1] < repeats[0] / 2, repeats


def num_repeats(answer: str) -> int:
    """Words that end a run of three that was there before."""
    words = answer.split()
    runs = [tuple(words[at : at + 3]) for at in range(len(words) - 2)]
    return len(runs) - len(set(runs))


def test_an_answer_that_passes_is_not_asked_for_again(real_server: RunningServer) -> None:
    answer = ask(real_server, "output_validation", {"pattern": "[\\s\\S]+", "max_tokens": 8})
    assert result(answer) == {"valid": True, "problems": []}
    assert usage(answer)["generations"] == 1


def test_a_module_that_is_not_there_is_an_error_of_the_script(real_server: RunningServer) -> None:
    args = {"modules": MODULES, "questions": [{"uses": ["carl"], "question": "Who?"}]}
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "extension": {"name": "modular_cache", "args": args},
    }
    answer = httpx.post(f"{real_server.url}/chat/completions", json=body, timeout=200)
    assert answer.status_code >= 400
    assert "there is no module 'carl'" in answer.json()["error"]["message"]
