"""Embedding one prompt: the engine's work ends however the caller leaves."""

from __future__ import annotations

import asyncio
import struct

import pytest

from engine.errors import EngineError, EngineStopped, InvalidRequest, OutOfPages
from engine.reports import report
from engine.request import ErrorReport, FinishReason, Pooling, TokenEvent
from extensions.runtime import Runtime
from tests.extensions.scripted_engine import Script, ScriptedEngine
from tests.extensions.vocabulary import Words

VALUES = (0.5, -1.0, 0.0, 2.0)


@pytest.fixture
def words() -> Words:
    """Plain bytes."""
    return Words()


def event(*, embedding: bytes | None = None, error: ErrorReport | None = None) -> TokenEvent:
    """The one event of an embedding."""
    reason = FinishReason.LENGTH if error is None else FinishReason.ERROR
    return TokenEvent(request_id="", index=0, token_ids=[], finish_reason=reason, error=error, embedding=embedding)


async def test_the_values_are_those_the_engine_sent(words: Words) -> None:
    engine = ScriptedEngine()
    script = engine.expect()
    script.put(event(embedding=struct.pack("<4f", *VALUES)))
    found = await Runtime(engine, words.text, Pooling.LAST).embed([3, 4, 5], account="a", salt="s", priority=2)
    assert tuple(found.values) == VALUES
    assert found.num_prompt_tokens == 3
    asked = engine.requests[0]
    assert (asked.pooling, asked.prompt_ids, asked.sampling.max_tokens) == (Pooling.LAST, [3, 4, 5], 0)
    assert (asked.account, asked.salt, asked.priority) == ("a", "s", 2)
    assert script.is_closed


@pytest.mark.parametrize(
    ("reported", "kind"),
    [(report(OutOfPages(3, 1)), OutOfPages), (ErrorReport("EngineError", "the step failed"), EngineError)],
)
async def test_what_goes_wrong_in_the_engine_is_raised(
    words: Words, reported: ErrorReport, kind: type[EngineError]
) -> None:
    engine = ScriptedEngine()
    script = engine.expect()
    script.put(event(error=reported))
    with pytest.raises(kind, match=reported.message):
        await Runtime(engine, words.text).embed([1])
    assert script.is_closed


async def test_an_engine_that_goes_away_is_told(words: Words) -> None:
    for end in (Script.die, Script.end):
        engine = ScriptedEngine()
        script = engine.expect()
        end(script)
        with pytest.raises(EngineStopped):
            await Runtime(engine, words.text).embed([1])
        assert script.is_closed


async def test_a_caller_who_leaves_ends_the_work(words: Words) -> None:
    engine = ScriptedEngine()
    script = engine.expect()
    waiting = asyncio.create_task(Runtime(engine, words.text).embed([1]))
    while script.request is None:  # noqa: ASYNC110 - the scripted engine has no event for it
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert script.is_closed


async def test_a_prompt_of_nothing_is_refused(words: Words) -> None:
    with pytest.raises(InvalidRequest):
        await Runtime(ScriptedEngine(), words.text).embed([])
