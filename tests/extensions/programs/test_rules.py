"""What rules in the device language say of passes over rows: what is seen, over a real engine."""

from __future__ import annotations

import pytest

from tests.extensions.programs.stage import Stage, main_of

TREE = """
TREE = '''
def mask(slot, row, start, parent):
    above = row
    found = slot < start
    for _ in range(3):
        found = found | (slot == start + above)
        above = where(above < 0, -1, gather(parent, above))
    return found
'''
"""


@pytest.fixture
def stage(real_stage: Stage) -> Stage:
    """All of these programs run over a real engine."""
    return real_stage


async def test_a_mask_rule_hides_what_the_same_bits_hide(stage: Stage) -> None:
    outcome = await stage.run(
        TREE
        + main_of(
            """
        rule = await lm.program(TREE, parent=[-1, 0, 0, 2])
        ctx = await lm.context("a b c d")
        n = ctx.length
        tree = [None, [[0, n + 2]], [[0, n + 1], [n + 2, n + 3]], [[0, n + 1], [n + 2, n + 4]]]
        found = []
        for mask in (rule, tree, None):
            fwd = lm.forward()
            await fwd.embed([20, 21, 22, 23])
            await fwd.state([ctx], {"positions": [n, n + 1, n + 1, n + 2]})
            if mask is not None:
                await fwd.mask(mask)
            await fwd.readout([0, 1, 2, 3], top=3)
            found.append([row.entropy for row in (await fwd.run()).rows])
        return found
        """
        )
    )
    ruled, explicit, plain = outcome.result
    assert ruled == pytest.approx(explicit, abs=1e-5)
    assert ruled[:2] == pytest.approx(plain[:2], abs=1e-5)
    assert abs(ruled[3] - plain[3]) > 1e-4


async def test_a_mask_rule_is_asked_for_each_lane_and_yields_to_kv_len(stage: Stage) -> None:
    ruled, explicit = await stage.value(
        """
        one, two = await lm.context("a b c"), await lm.context("d e f g")
        found = []
        for mask in ("def mask(slot, lane):\\n    return (slot < 5) & (slot % 2 == lane)\\n",
                     [[1, 0, 1], [1, 0, 1], [0, 1, 0]]):
            fwd = lm.forward()
            await fwd.embed([20, 21, 22], [0, 2, 3])
            await fwd.state([one, two], {"kv_len": [3, 3]})
            await fwd.mask(mask)
            found.append([row.entropy for row in (await fwd.run()).rows])
        return found
        """
    )
    assert ruled == pytest.approx(explicit, abs=1e-5)


REFUSED: dict[str, tuple[str, str]] = {
    "a rule that draws": (
        'await fwd.mask("def sample(logits):\\n    return argmax(logits)\\n")',
        "program_invalid: `sample` draws tokens",
    ),
    "a rule that is none": (
        'await fwd.mask("def mask(slot):\\n    return slot + 1\\n")',
        "program_invalid: line 2, column 12",
    ),
    "a text that is no rule": ('await fwd.mask("window")', "invalid_argument: rows must be"),
    "a rule without its parameter": (
        'await fwd.mask("def mask(slot, window):\\n    return slot < window\\n")',
        "invalid_argument: the program needs a value for its parameter `window`",
    ),
    "a rule that draws tokens": (
        'await fwd.epilogue(await lm.program("def mask(slot):\\n    return slot < 1\\n"))',
        "program_invalid: `mask` says what rows see",
    ),
    "a rule as a sampler": (
        'await ctx.generate(max_tokens=1, sampler="def mask(slot):\\n    return slot < 1\\n")',
        "program_invalid: `mask` says what rows see",
    ),
    "a rule as a drafter": (
        'await ctx.generate(max_tokens=1, drafter="def mask(slot):\\n    return slot < 1\\n")',
        "program_invalid: `mask` says what rows see",
    ),
    "too many rows": (
        """await fwd.embed([20] * 513)
await fwd.state([ctx])
await fwd.mask("def mask(slot):\\n    return slot < 1\\n")
await fwd.run()""",
        "invalid_argument: lane 0 has 513 rows",
    ),
    "no position": (
        """await fwd.state([ctx], {"positions": [2**70]})
await fwd.mask("def mask(slot):\\n    return slot < 1\\n")
await fwd.run()""",
        "invalid_argument: positions must be between",
    ),
    "no token": (
        """await fwd.embed([2**70])
await fwd.state([ctx])
await fwd.mask("def mask(slot):\\n    return slot < 1\\n")
await fwd.run()""",
        "invalid_argument: tokens has a number",
    ),
}


@pytest.mark.parametrize(("lines", "text"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_does_not_fit_is_refused_and_nothing_is_left(stage: Stage, lines: str, text: str) -> None:
    body = "\n".join("    " + line for line in lines.split("\n"))
    error, length = await stage.value(
        f"""
ctx = await lm.context("a b c")
before = ctx.length
fwd = lm.forward()
await fwd.embed([20])
await fwd.state([ctx])
error = ""
try:
{body}
except ValueError as failed:
    error = str(failed)
return [error, ctx.length - before]
"""
    )
    assert error.startswith(text)
    assert length == 0
