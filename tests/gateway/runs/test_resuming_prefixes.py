"""Runs that go on from exported prefixes, and then after a crash or a stop, whatever has become of the prefix."""

from __future__ import annotations

import itertools

import pytest

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, says
from tests.gateway.runs.test_resuming import WORDS, Mortal, hasty
from tests.gateway.runs.workers import RUNS, Worker, begin, ended, get, until
from tests.gateway.wire import Body

__all__ = ["hasty"]

MAKES = """
ctx = await lm.context(request.args["text"])
await ctx.prefill()
return await ctx.export("handbook", ttl_s=600)
"""
USES = """
missing = await lm.prefix("nothing", on_miss="none")
try:
    await lm.prefix("nothing")
except LookupError as error:
    missing = [missing, str(error).split(":")[0]]
ctx = await lm.prefix("handbook", on_miss="fail")
length = ctx.length
await ctx.append("Hi")
said = await ctx.generate(max_tokens=12, emit=True, temperature=1.0)
await lm.store.put("used", length)
again = await lm.prefix("handbook")
more = await again.generate(max_tokens=6)
return [missing, length, said.text, more.text, ctx.length, again.length]
"""
WAITS = """
ctx = await lm.prefix("handbook")
await lm.emit("on")
await lm.receive()
said = await ctx.generate(max_tokens=8)
return [ctx.length, said.text]
"""


@pytest.fixture
def engine(model: TextModel) -> ScriptedEngine:
    """Says the same a few tokens at a time."""
    return ScriptedEngine(model, says(model, WORDS, per_event=4))


async def make(worker: Worker, text: str) -> None:
    """A prefix of this text."""
    done = await ended(worker.ann, (await begin(worker.ann, MAKES, args={"text": text}))["id"])
    assert done["status"] == "completed", done["error"]


@pytest.mark.parametrize("start", range(2))
async def test_killed_anywhere_a_run_with_a_prefix_comes_to_the_same(
    engine: ScriptedEngine,
    model: TextModel,
    redis_url: str,
    there: Worker,
    monkeypatch: pytest.MonkeyPatch,
    start: int,
) -> None:
    await make(there, "A long text that all begin with.")
    victim = Worker(engine, model, redis_url)
    whole = await ended(there.ann, (await begin(there.ann, USES))["id"])
    assert whole["status"] == "completed", whole["error"]
    assert whole["result"][0] == [None, "prefix_not_found"]
    Mortal(victim, monkeypatch, itertools.count(1 + start, 2))
    runs = [await begin(victim.ann, USES) for _ in range(12)]
    for run in runs:
        done = await ended(there.ann, run["id"])
        assert (done["status"], done["result"], done["lives"]) == ("completed", whole["result"], 2)
        assert done["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    await victim.close()


@pytest.mark.parametrize("becomes", ["deleted", "another"])
@pytest.mark.parametrize("ends", ["crash", "stop"])
async def test_what_becomes_of_the_prefix_meanwhile_is_nothing_to_a_run_that_has_it(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, becomes: str, ends: str
) -> None:
    await make(there, "A long text that all begin with.")
    victim = Worker(engine, model, redis_url)
    run = await begin(victim.ann, WAITS)
    await until(lambda: _has_said(there, run["id"]))
    told: Body = await get(there.ann, f"/{run['id']}")
    assert (told["resumable"], told["not_resumable_reason"]) == (True, None)
    await (victim.vanish() if ends == "crash" else victim.close())
    assert (await there.ann.delete("/v1/prefixes/handbook")).status_code == 200
    if becomes == "another":
        await make(there, "Something else.")
    await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 1})
    done = await ended(there.ann, run["id"])
    assert done["status"] == "completed", done["error"]
    prompt = engine.requests[-1].prompt_ids
    assert model.tokenizer.decode(prompt).endswith("A long text that all begin with.")
    assert done["result"] == [len(prompt) + 8, WORDS[: len(done["result"][1])]]


async def _has_said(worker: Worker, run_id: str) -> bool:
    return bool((await get(worker.ann, f"/{run_id}"))["last_sequence_number"] >= 1)
