"""Steps that are known already, kept where the script is: most of those of a loop that takes what is shown.

The engine computes ahead while the script decides, as if it took each token that it is shown, and tells of several
steps together. Here they wait inside the sandbox: the script goes through them at the price of a call of its own, and
the server is called when they run out, or when the script wants something else; then it is told how many were taken.
"""

from __future__ import annotations

import ast

from extensions.sandbox.stand_ins import StandIn

_NAME = "wye_generation"
_TELL = "wye_tell"

_CODE = f"""
wye_stepped = {{}}

async def {_NAME}(wye_on, **wye_fields):
    wye_made = await wye_on.generation(**wye_fields)
    if str(type(wye_on)) != "<class 'Context'>":
        return wye_made
    wye_stepped[id(wye_made)] = wye_Generation(wye_made)
    return wye_stepped[id(wye_made)]

async def {_TELL}():
    for wye_one in wye_stepped.values():
        if wye_one.wye_taken:
            await wye_one.wye_on.take(wye_one.wye_taken)

class wye_Generation:
    def __init__(self, on):
        self.wye_on = on
        self.wye_shown = None
        self.wye_chosen = None
        self.wye_known = []
        self.wye_taken = 0

    def __repr__(self):
        return repr(self.wye_on)

    async def step(self, n=1, *, choose=None):
        if self.wye_known and n == 1 and not isinstance(n, bool) and (choose is None or self.wye_shows(choose)):
            self.wye_taken += 1
            self.wye_shown, self.wye_chosen = self.wye_known.pop(0), None
            return self.wye_shown
        taken, self.wye_taken, self.wye_known = self.wye_taken, 0, []
        steps = await self.wye_on.steps(taken, n, choose=self.wye_chosen if choose is None else choose)
        self.wye_shown, self.wye_chosen, self.wye_known = steps[0], None, steps[1:]
        if self.wye_shown.finished:
            wye_stepped.pop(id(self.wye_on), None)
        return self.wye_shown

    async def choose(self, token):
        if self.wye_shows(token):
            self.wye_chosen = token
        else:
            await self.wye_settle()
            await self.wye_on.choose(token)

    async def ban(self, tokens):
        await self.wye_settle()
        await self.wye_on.ban(tokens)

    async def stop(self):
        await self.wye_settle()
        wye_stepped.pop(id(self.wye_on), None)
        await self.wye_on.stop()

    def wye_shows(self, token):
        shown = self.wye_shown
        is_id = isinstance(token, int) and not isinstance(token, bool)
        return shown is not None and not shown.finished and is_id and token == shown.token

    async def wye_settle(self):
        taken, self.wye_taken, self.wye_known = self.wye_taken, 0, []
        if taken:
            await self.wye_on.take(taken)
        chosen, self.wye_chosen = self.wye_chosen, None
        if chosen is not None:
            await self.wye_on.choose(chosen)
"""


def _applies(call: ast.Call, is_awaited: bool) -> bool:
    return is_awaited  # what is not may be anybody's method, and no coroutine


STEPPING = StandIn(method="generation", name=_NAME, code=_CODE, applies=_applies, at_end=f"await {_TELL}()\n")
"""What stands for `generation`, and for the generation itself.

A script that fails says no more how many it has taken: of what was known and not told, nothing is counted then."""
