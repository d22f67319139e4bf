"""Steps that are known already, kept where the script is: most of those of a loop that takes what is shown.

The engine computes ahead while the script decides, as if it took each token that it is shown, and tells of several
steps together. Here they wait inside the sandbox: the script goes through them at the price of a call of its own, and
the server is called when they run out, or when the script wants something else; then it is told how many were taken,
and how often the script chose what it was shown, which takes no call here either. Of calls at once each is a call of
the server, where they take their turns, and what the last of them brought is what is known.
"""

from __future__ import annotations

import ast

from extensions.sandbox.stand_ins import StandIn

_NAME = "wye_generation"
_RELEASE = "wye_release"
_REST = "wye_rest"

_CODE = f"""
wye_stepped = {{}}

async def {_NAME}(wye_on, **wye_fields):
    wye_made = await wye_on.generation(**wye_fields)
    if wye_str(wye_type(wye_on)) != "<class 'Context'>":
        return wye_made
    wye_stepped[wye_id(wye_made)] = wye_Generation(wye_made, wye_on)
    return wye_stepped[wye_id(wye_made)]

async def {_RELEASE}(wye_on, **wye_fields):
    for wye_one in wye_list(wye_stepped.values()):
        if wye_one.wye_of is wye_on:
            await wye_one.wye_settle()
            wye_stepped.pop(wye_id(wye_one.wye_on), None)
    return await wye_on.release(**wye_fields)

def {_REST}():
    return [[wye_one.wye_on, wye_one.wye_taken, wye_one.wye_choices] for wye_one in wye_stepped.values()]

class wye_Generation:
    def __init__(self, on, of):
        self.wye_on = on
        self.wye_of = of
        self.wye_shown = None
        self.wye_chosen = None
        self.wye_known = []
        self.wye_taken = 0
        self.wye_choices = 0
        self.wye_asked = 0
        self.wye_answered = 0

    def __repr__(self):
        return f"{{self.wye_on!r}}"

    async def step(self, n=1, *, choose=None):
        if self.wye_known and wye_type(n) is wye_int and n == 1 and (choose is None or self.wye_shows(choose)):
            self.wye_taken += 1
            self.wye_shown, self.wye_chosen = self.wye_known.pop(0), None
            return self.wye_shown
        taken, self.wye_taken, self.wye_known = self.wye_taken, 0, []
        choices, self.wye_choices = self.wye_choices, 0
        if choose is None:
            choose = self.wye_chosen
        self.wye_chosen = None
        self.wye_asked += 1
        turn = self.wye_asked
        steps = await self.wye_on.steps(taken, n, choose=choose, choices=choices)
        if steps[0].finished:
            wye_stepped.pop(wye_id(self.wye_on), None)
        if turn == self.wye_asked:
            self.wye_answered = turn
            self.wye_shown, self.wye_known = steps[0], steps[1:]
        return steps[0]

    async def choose(self, token):
        if self.wye_chosen is None and self.wye_shows(token):
            self.wye_chosen = token
            self.wye_choices += 1
        else:
            await self.wye_settle()
            await self.wye_on.choose(token)

    async def ban(self, tokens):
        await self.wye_settle()
        await self.wye_on.ban(tokens)

    async def stop(self):
        await self.wye_settle()
        wye_stepped.pop(wye_id(self.wye_on), None)
        await self.wye_on.stop()

    def wye_shows(self, token):
        shown = self.wye_shown
        if shown is None or shown.finished or self.wye_asked != self.wye_answered:
            return False
        return wye_type(token) is wye_int and token == shown.token

    async def wye_settle(self):
        taken, self.wye_taken, self.wye_known = self.wye_taken, 0, []
        choices, self.wye_choices = self.wye_choices, 0
        chosen, self.wye_chosen = self.wye_chosen, None
        if taken or chosen is not None:
            await self.wye_on.take(taken, choices, chosen)
"""


def _applies(call: ast.Call, is_awaited: bool) -> bool:
    return is_awaited  # what is not may be anybody's method, and no coroutine


STEPPING = StandIn(
    method="generation",
    name=_NAME,
    code=_CODE,
    applies=_applies,
    rest=f"{_REST}()",
    others={"release": _RELEASE},
)
"""What stands for `generation`, and for the generation itself; and for `release`, for a context that is gone has no
more steps, known or not."""
