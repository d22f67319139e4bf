"""The programs that documentation shows, as far as this server runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BEST_OF_N = '''"""Best of n: sample n answers from one prefilled prompt and keep the most likely."""
EXTENSION = {"name": "best_of_n", "version": "1.0.0",
             "params": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 16, "default": 4}}}}

async def main(request, lm):
    prompt = await lm.context(request.messages)
    branches = await prompt.fork(request.args["n"])
    answers = await asyncio.gather(*[b.generate(max_tokens=120, temperature=0.9, seed=i) for i, b in enumerate(branches)])
    best = max(answers, key=lambda a: a.mean_logprob)
    return best.text
'''  # noqa: E501

TRY_AGAIN = """
async def main(request, lm):
    ctx = await lm.context(request.messages)
    start = await ctx.mark()
    for attempt in range(3):
        answer = await ctx.generate(max_tokens=80, temperature=0.7, seed=attempt)
        if "because" in answer.text:
            return answer.text
        await ctx.rewind(start)
    return answer.text
"""

STEP_BY_STEP = """
async def main(request, lm):
    ctx = await lm.context(request.messages)
    gen = await ctx.generation(max_tokens=60, temperature=0.0, top=64)
    out = []
    while True:
        step = await gen.step()
        if step.finished:
            break
        token = step.token
        if step.entropy > 3.5 and step.candidates:
            token = step.candidates[1].token
        await gen.choose(token)
        out.append(token)
    return await lm.decode(out)
"""


@dataclass(frozen=True, slots=True)
class Example:
    """One of them."""

    source: str
    args: Mapping[str, Any] = field(default_factory=dict)


EXAMPLES: dict[str, Example] = {
    "best of n": Example(BEST_OF_N, {"n": 3}),
    "try again": Example(TRY_AGAIN),
    "step by step": Example(STEP_BY_STEP),
}
