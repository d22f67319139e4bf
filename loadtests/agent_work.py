"""What agents of `loadtests.agents` do: their prompts, their calls, and the programs that do the same on the server.

Every prompt and observation is token ids, so that a loop of a client and a program work on the same tokens, and greedy
generation gives both the same text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Workflow = Literal["react", "codeact", "swarm"]

TOOL = "look_up"
NUM_ROLES = 4
CODE_ROUNDS = 200
"""Rounds of the loop that stands for an action of CodeACT."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How large the work is.

    Attributes:
        workflow: ReACT calls a tool after each thought, CodeACT runs code after each, in Swarm roles hand messages on.
        calls: Interactions of one run.
        tokens: Generated between two of them.
        spec_tokens: Of each tool's specification, one tool a call; of each role in Swarm.
        ask_tokens: Of the task, different for each run.
        observation_tokens: Of what comes back.
    """

    workflow: Workflow
    calls: int
    tokens: int
    spec_tokens: int = 64
    ask_tokens: int = 32
    observation_tokens: int = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One run.

    Attributes:
        shape: Of the work.
        specs: Specification of each tool, or of each role; the same for all runs.
        ask: What this run is to do.
        observations: What each call brings.
    """

    shape: Shape
    specs: Sequence[Sequence[int]]
    ask: Sequence[int]
    observations: Sequence[Sequence[int]]

    @property
    def prompt(self) -> list[int]:
        """What a run begins with."""
        return [*(token for spec in self.specs for token in spec), *self.ask]

    def beginnings(self) -> list[list[int]]:
        """What the histories of all runs begin with."""
        if self.shape.workflow == "swarm":
            return [list(spec) for spec in self.specs]
        return [self.prompt[: len(self.specs) * self.shape.spec_tokens]]

    def spans(self) -> list[tuple[int, int]]:
        """Where each specification stands in the prompt."""
        size = self.shape.spec_tokens
        return [(at * size, (at + 1) * size) for at in range(len(self.specs))]


def tasks(shape: Shape, count: int, *, round_number: int, vocab_size: int) -> list[Task]:
    """The runs of one round.

    Args:
        shape: Of the work.
        count: How many.
        round_number: Asks differ from round to round.
        vocab_size: Ids are below; the lowest hundred, where special tokens are, are left out.
    """

    def ids(name: object, size: int) -> list[int]:
        draw = random.Random(f"{shape.workflow} {name}")
        return [draw.randrange(100, vocab_size) for _ in range(size)]

    num_specs = NUM_ROLES if shape.workflow == "swarm" else shape.calls
    specs = [ids(f"spec {at}", shape.spec_tokens) for at in range(num_specs)]
    return [
        Task(
            shape=shape,
            specs=specs,
            ask=ids(f"ask {round_number} {number}", shape.ask_tokens),
            observations=[ids(f"observation {at}", shape.observation_tokens) for at in range(shape.calls)],
        )
        for number in range(count)
    ]


def run_code(number: int) -> int:
    """An action of CodeACT as a client runs it; `CODEACT` has the same."""
    total = 0
    for at in range(CODE_ROUNDS):
        total = (total * 31 + at * number) % 1000003
    return total


_GENERATE = "await ctx.generate(max_tokens={}, temperature=0.0, template_stops=False)"

REACT = f"""
async def main(request, lm):
    args = request.args
    tokens, early = args["tokens"], args["early"]
    ctx = await lm.context(request.prompt)
    out = []
    for number, observation in enumerate(args["observations"]):
        before = tokens // 2 if early else tokens
        out += ({_GENERATE.format("before")}).tokens
        if early:
            call = await lm.start_tool("{TOOL}", {{"number": number}})
            out += ({_GENERATE.format("tokens - before")}).tokens
            await call.result()
        else:
            await lm.tool("{TOOL}", number=number)
        if args["drop"]:
            start, stop = args["spans"][number]
            await ctx.drop(start, stop)
        await ctx.append(observation)
    out += ({_GENERATE.format("tokens")}).tokens
    return {{"tokens": out}}
"""

CODEACT = f"""
def run_code(number):
    total = 0
    for at in range({CODE_ROUNDS}):
        total = (total * 31 + at * number) % 1000003
    return total


async def main(request, lm):
    args = request.args
    ctx = await lm.context(request.prompt)
    out = []
    for number, observation in enumerate(args["observations"]):
        out += ({_GENERATE.format('args["tokens"]')}).tokens
        if run_code(number) >= 0:
            await ctx.append(observation)
    out += ({_GENERATE.format('args["tokens"]')}).tokens
    return {{"tokens": out}}
"""

SWARM = f"""
async def main(request, lm):
    args = request.args
    roles = [await lm.context(spec + request.prompt) for spec in args["specs"]]
    message, out = [], []
    for number in range(args["calls"]):
        ctx = roles[number % len(roles)]
        await ctx.append(message)
        message = ({_GENERATE.format('args["tokens"]')}).tokens
        out += message
    return {{"tokens": out}}
"""

SOURCES: dict[Workflow, str] = {"react": REACT, "codeact": CODEACT, "swarm": SWARM}


def program_body(task: Task, *, early: bool = False, drop: bool = False) -> dict[str, Any]:
    """A completion request that does the task as a program; model and salt are the caller's."""
    shape = task.shape
    args: dict[str, Any] = {"tokens": shape.tokens, "observations": task.observations}
    match shape.workflow:
        case "react":
            args |= {"early": early, "drop": drop, "spans": task.spans()}
        case "swarm":
            args = {"tokens": shape.tokens, "calls": shape.calls, "specs": task.specs}
    prompt = list(task.ask) if shape.workflow == "swarm" else task.prompt
    return {"prompt": prompt, "extension": {"source": SOURCES[shape.workflow], "args": args}}
