"""Programs of the library that reach beyond the model, over a scripted one that says what the test wants."""

from __future__ import annotations

from engine.request import GenerateRequest
from engine.text.model import TextModel
from tests.fakes import ScriptedEngine
from tests.gateway.runs.workers import RUNS, Worker, ended
from tests.gateway.wire import Body


def says_in_turn(engine: ScriptedEngine, model: TextModel, *texts: str) -> None:
    """Each generation says the next text."""
    waiting = list(texts)

    def script(request: GenerateRequest, index: int) -> list[list[int]]:
        return [[token] for token in model.tokenizer.encode(waiting.pop(0), add_special=False)]

    engine.script = script


async def codeact(worker: Worker, messages: list[dict[str, str]], **args: float) -> Body:
    """The run, once it has ended well."""
    answer = await worker.ann.post(RUNS, json={"name": "codeact@1", "messages": messages, "args": args})
    assert answer.status_code == 200, answer.text
    run = await ended(worker.ann, answer.json()["id"])
    assert run["status"] == "completed", run["error"]
    return run


async def test_codeact_runs_what_the_model_writes_and_shows_it_what_came_of_it(
    here: Worker, engine: ScriptedEngine, model: TextModel
) -> None:
    says_in_turn(
        engine,
        model,
        "I multiply.\n```python\n",
        "for at in range(2):\n    print(6 * 7 + at)\n```",
        "Once more.\n```python\n",
        "print(1 / 0)\n```",
        "```python\n",
        "print(nothing)\n```",
        "It is 42.",
    )
    asked = [{"role": "user", "content": "How much is 6 times 7?"}]
    run = await codeact(here, asked)
    first, second, third = run["result"]["steps"]
    assert first == {
        "said": "I multiply.\n",
        "code": "for at in range(2):\n    print(6 * 7 + at)\n",
        "output": "42\n43\n",
    }
    assert "ZeroDivisionError" in second["output"]
    assert third["output"].startswith("error: program_invalid: ")
    assert run["result"]["answered"] is True
    assert run["content"] == "It is 42."
    assert run["usage"]["children"] == 3
    shown = model.tokenizer.decode(engine.last.prompt_ids, skip_special=False)
    assert "Observation:\n42\n43" in shown


async def test_code_that_never_ends_is_an_observation_too(
    here: Worker, engine: ScriptedEngine, model: TextModel
) -> None:
    says_in_turn(engine, model, "```python\n", "while True:\n    pass\n```", "I give up.")
    run = await codeact(here, [{"role": "user", "content": "Loop."}], code_s=0.3)
    assert "limit_exceeded" in run["result"]["steps"][0]["output"]
    assert run["content"] == "I give up."
