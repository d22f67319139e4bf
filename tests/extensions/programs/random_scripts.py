"""Scripts that step through generations at random and write down all that they see, made from a seed."""

from __future__ import annotations

import random

ERRORS = "(ValueError, LookupError, MemoryError, RuntimeError, PermissionError, TypeError, AttributeError)"

_BEFORE = """
def note_of(step, told, whole):
    seen = [step.finished, step.finish_reason, step.token, step.text]
    if whole:
        seen += [round(step.entropy, 3), round(step.omitted_mass, 3), [one.token for one in step.candidates[:3]]]
    told.append(seen)


def other(step):
    return (step.token * 7 + 31) % 300 + 5 if step.token >= 0 else 40


async def guarded(branch, told):
    try:
        await branch
    except (ValueError, LookupError, MemoryError, RuntimeError, PermissionError, TypeError, AttributeError) as error:
        told.append(["ended", type(error).__name__, str(error)])


async def place(ctx, told):
    info = await ctx.info()
    told.append(["at", ctx.length, info.pending, info.bytes, info.recomputable, (await ctx.tokens())[-3:]])
"""

_SAMPLING = (
    *("temperature=0.0", "temperature=0.9, seed={seed}", "temperature=1.4, seed={seed}, top_k=30"),
    "temperature=0.8, seed={seed}, presence_penalty=0.7, frequency_penalty=0.4",
    *("temperature=1.0, seed={seed}, repetition_penalty=1.3", "temperature=1.0, seed={seed}, min_p=0.02, top_p=0.9"),
    "temperature=1.0, seed={seed}, logit_bias={{50: 3.0, 60: -5.0}}, min_tokens=4",
)
_ENDS = ("", "", "", "", ", stop='e'", ", stop_token_ids=[70, 71, 72, 73, 90, 91, 92, 120, 121, 122, 123, 124]")
_CONSTRAINTS = ("", "", "", "", "", ", constrain={'regex': '[a-f]{3,20}'}")

_REFUSED = (
    *("await ctx.append('more')", "await ctx.fork()", "await ctx.mark()", "await ctx.rewind(start)"),
    *("await ctx.truncate(1)", "await ctx.hide(0, 1)", "await ctx.drop(0, 1)", "await ctx.forget(0, 1)"),
    *("await ctx.next(top=2)", "await ctx.score(['a'])", "await ctx.choose(['a', 'b'])", "await ctx.prefill()"),
    *("await ctx.generate(max_tokens=2, temperature=0.0)", "await (await ctx.generation(max_tokens=2)).stop()"),
    *("await gen.step(0)", "await gen.step(1.0)", "await gen.step(True)", "await gen.step(choose='a')"),
    *("await gen.step(choose=-1)", "await gen.step(choose=10 ** 6)", "await gen.choose('a')", "await gen.choose(-1)"),
    *("await gen.choose(1.5)", "await gen.choose(True)", "await gen.ban([10 ** 6])", "await gen.ban(3)"),
)


class _Branch:
    """Lines of one function that works on a context of its own."""

    def __init__(self, dice: random.Random, name: str, *, is_alone: bool) -> None:
        self._dice = dice
        self._name = name
        self._said = "step.text" if is_alone else "'.'"

    def source(self, ending: str) -> str:
        """The function."""
        body = ["start = await ctx.mark()"]
        for _ in range(self._dice.randint(1, 3)):
            body += self._generation()
        lines = [f"async def {self._name}(lm, ctx, told):", *("    " + line for line in [*body, ending, "return told"])]
        return "\n".join(line for line in lines if line.strip())

    def _generation(self) -> list[str]:
        dice = self._dice
        most = dice.choice((5, 24, 60, 60))
        sampling = dice.choice(_SAMPLING).format(seed=dice.randint(0, 99))
        stops = "" if dice.random() < 0.2 else ", template_stops=False"
        end = dice.choice(_ENDS)
        rest = end + dice.choice(_CONSTRAINTS) + dice.choice((", top=3", ", top=5", ", need_mass=0.3"))
        # A text that ends it leaves the engine a token ahead, or behind.
        after = [*(["await ctx.prefill()"] if "stop=" in end else ()), *self._after()]
        lines = [
            f"gen = await ctx.generation(max_tokens={most}, {sampling}{stops}{rest})",
            "step = await gen.step()",
            self._note(),
        ]
        for _ in range(dice.randint(1, 9)):
            lines += self._act()
        if dice.random() < 0.85:
            return [*lines, *self._left(), *after]
        return [*lines, "while not step.finished:", "    step = await gen.step()", "    " + self._note(), *after]

    def _note(self) -> str:
        return f"note_of(step, told, {self._dice.random() < 0.3})"

    def _left(self) -> list[str]:
        """How the generation is ended."""
        choice = self._dice.random()
        if choice < 0.3:
            return ["if not step.finished:", f"    await gen.choose({self._token()})", "await gen.stop()"]
        return ["await gen.stop()"]

    def _token(self) -> str:
        return self._dice.choice(("step.token", "step.token", "other(step)"))

    def _act(self) -> list[str]:
        """What is done with a generation that is open."""
        dice = self._dice
        choice = dice.random()
        if choice < 0.45:
            return self._walk(dice.choice((1, 2, 3, 5, 9, 20)))
        if choice < 0.60:
            return self._tried(dice.choice(_REFUSED))
        if choice < 0.70:
            ban = dice.choice(("[step.token]", "[other(step)]", "[]", "[step.token, other(step)]"))
            return ["if not step.finished:", f"    await gen.ban({ban})"]
        if choice < 0.80:
            return ["if not step.finished:", f"    step = await gen.step({dice.randint(2, 6)})", "    " + self._note()]
        if choice < 0.90:
            first, then = self._token(), self._token()
            return self._tried(f"await gen.choose({first}); await gen.choose({then})")
        return dice.choice(
            (
                ["told.append([ctx.length, len(await ctx.tokens())])"],
                [f"await lm.emit({self._said})"],
                [f"print({self._said})"],
                ["await lm.sleep(0.0)"],
                ["told.append(await lm.decode([50, 51]))"],
                ["await asyncio.sleep(0)"],
            )
        )

    def _walk(self, count: int) -> list[str]:
        """Some steps, each taken in the same way."""
        way = self._dice.choice(
            (
                ["step = await gen.step()"],
                ["step = await gen.step()"],
                ["step = await gen.step(choose=step.token)"],
                ["await gen.choose(step.token)", "step = await gen.step()"],
                [f"await lm.emit({self._said})", "step = await gen.step()"],
                [f"step = await gen.step(choose=other(step) if at == {count - 1} else step.token)"],
                ["await gen.choose(step.token)", "await gen.choose(step.token)", "step = await gen.step()"],
            )
        )
        lines = [
            *(f"for at in range({count}):", "    if step.finished:", "        break"),
            *("    " + line for line in way),
            "    " + self._note(),
        ]
        return self._caught(lines)

    def _tried(self, line: str) -> list[str]:
        return self._caught([line])

    def _caught(self, lines: list[str]) -> list[str]:
        caught = ["told.append([type(error).__name__, str(error)])"]
        return [
            *("try:", *("    " + line for line in lines)),
            *(f"except {ERRORS} as error:", *("    " + line for line in caught)),
        ]

    def _after(self) -> list[str]:
        """What is done with the context then."""
        dice = self._dice
        lines = ["await place(ctx, told)"]
        for _ in range(dice.randint(0, 3)):
            line = dice.choice(
                (
                    "await ctx.rewind(start)",
                    "start = await ctx.mark()",
                    f"await ctx.truncate(max(ctx.length - {dice.randint(1, 20)}, 2))",
                    f"await ctx.hide(1, min(ctx.length, {dice.randint(2, 6)}))",
                    f"await ctx.drop(1, min(ctx.length, {dice.randint(2, 30)}))",
                    f"await ctx.forget(1, min(ctx.length - 1, {dice.randint(2, 6)}))",
                    "ctx = await ctx.fork()",
                    "told.append([one.token for one in (await ctx.next(top=3)).candidates])",
                    "told.append([round(one, 2) for one in (await ctx.score(['and so']))[0]])",
                    "told.append((await ctx.choose(['a', 'b'])).best)",
                    f"told.append((await ctx.generate(max_tokens=3, seed={dice.randint(0, 9)})).tokens)",
                    "await ctx.append('and then')",
                )
            )
            lines += self._tried(line)
        return [*lines, "await place(ctx, told)"]


def random_script(seed: int) -> str:
    """A script. What it writes down does not depend on how fast it is told what."""
    dice = random.Random(seed)
    count = dice.choice((1, 1, 1, 2, 3))
    ways_out = ["", "", "", "", "raise KeyError('enough')", "return 'early'", "await ctx.release()", "1 / 0"]
    branches = []
    for at in range(count):
        way_out = dice.choice(ways_out) if count == 1 else ""
        branches.append(_Branch(dice, f"branch_{at}", is_alone=count == 1).source(way_out))
    calls = [f"branch_{at}(lm, ctxs[{at}], told[{at}])" for at in range(count)]
    if count > 1:
        calls = [f"guarded({call}, told[{at}])" for at, call in enumerate(calls)]
    left = dice.random() < 0.25
    open_at_end = [
        "    late = await root.generation(max_tokens=60, temperature=0.9, seed=7, template_stops=False, top=2)",
        f"    for at in range({dice.randint(1, 40)}):",
        "        note_of(await late.step(), told[0], False)",
    ]
    ending = dice.choice(("    return told", "    return told", "    raise ValueError(str(told))", "    return 'done'"))
    main = [
        "async def main(request, lm):",
        "    root = await lm.context('one two three four five')",
        f"    told = [[] for _ in range({count})]",
        f"    ctxs = await root.fork({count})",
        f"    await asyncio.gather({', '.join(calls)})",
        *(open_at_end if left else ()),
        "    print(told)",
        ending,
    ]
    return "\n\n\n".join([_BEFORE, *branches, "\n".join(main)]) + "\n"
