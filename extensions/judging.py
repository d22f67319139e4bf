"""Judgements: how likely a model would go on with one token rather than another."""

from __future__ import annotations

import math

from engine.errors import EngineStopped
from engine.sampling.params import SamplingParams
from engine.text.judging import Judgement
from extensions.live_context import LiveContext
from extensions.output import GenerateOptions


async def judge(context: LiveContext, judgement: Judgement, *, priority: int = 0) -> float:
    """The probability of yes where only yes and no can follow: 0..1.

    Args:
        context: Ends where the model is to answer; released when this returns, however it does.
        judgement: The two tokens.
        priority: Lower enters sooner.

    Raises:
        InvalidRequest: It can never be served (`ContextTooLong` if it does not fit).
        QueueFull: Too many requests wait already.
        EngineStopped: No engine is there, or it went away.
        EngineError: The engine gave the request up.
    """
    only = (judgement.no, judgement.yes)
    options = GenerateOptions(
        sampling=SamplingParams(max_tokens=1, temperature=0.0, allowed_token_ids=only), priority=priority
    )
    try:
        async with await context.stepped(options, top=len(only)) as generation:
            found = (await generation.step()).distribution
        if found is None:
            raise EngineStopped("the engine ended a request before its judgement")
        return math.exp(dict(zip(found.token_ids, found.logprobs, strict=True)).get(judgement.yes, -math.inf))
    finally:
        context.release()
