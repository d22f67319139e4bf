"""Functions as drafters: what a script passes to `generate` as `drafter` can only be called inside the sandbox.

So where a call of `generate` names a drafter that may be a function, a function in its place asks the server for one
step after the other, and the drafter between.
"""

from __future__ import annotations

import ast

from extensions.sandbox.stand_ins import StandIn

_NAME = "wye_generate"

_CODE = f"""
async def {_NAME}(wye_context, **wye_fields):
    wye_propose = wye_fields["drafter"]
    wye_is_function = wye_str(wye_type(wye_propose)) == "<class 'function'>"
    if not wye_is_function or wye_str(wye_type(wye_context)) != "<class 'Context'>":
        return await wye_context.generate(**wye_fields)
    wye_fields.pop("drafter")
    wye_drafting = await wye_context.drafting(**wye_fields)
    wye_tokens = wye_list(wye_drafting.history)
    wye_seen = await wye_drafting.next()
    while wye_seen.wanted:
        wye_tokens.extend(wye_seen.tokens)
        wye_guess, wye_q = wye_propose(wye_tokens, wye_seen.wanted), None
        if wye_str(wye_type(wye_guess)) == "<class 'coroutine'>":
            wye_guess = await wye_guess
        if wye_isinstance(wye_guess, wye_tuple) and wye_len(wye_guess) == 2:
            wye_guess, wye_q = wye_guess
        wye_seen = await wye_drafting.next([] if wye_guess is None else wye_guess, wye_q)
    return await wye_drafting.completion()
"""


def _may_guess(call: ast.Call, is_awaited: bool) -> bool:
    drafters = [one.value for one in call.keywords if one.arg == "drafter"]
    return bool(drafters) and not isinstance(drafters[0], ast.Constant | ast.Dict)


GUESSING = StandIn(method="generate", name=_NAME, code=_CODE, applies=_may_guess)
"""What stands for `generate` where the drafter may be a function.

It catches nothing, for the sandbox forgets where an error came from when it is raised again: a context whose drafter
raised is freed when the script turns to it (`ScriptContext.left_behind`)."""
