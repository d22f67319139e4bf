"""Agents as loops of a client and as programs do the same work, and effects are worked out right."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import pytest

from docs import agents_chart
from extensions.programs.guard import Guard
from extensions.programs.request import ProgramRequest
from extensions.programs.world import World
from extensions.runtime import Runtime
from extensions.sandbox.pool import PoolOptions
from extensions.tools.catalog import ToolCatalog, ToolInfo, ToolResult
from loadtests.agent_client import CallFailed, Link, Spent, loop
from loadtests.agent_numbers import COMBINATIONS, Combination, Measured, effects, same_share, summary
from loadtests.agent_work import SOURCES, TOOL, Shape, Task, Workflow, program_body, run_code, tasks
from loadtests.agents import Bench, measure, parsed
from loadtests.tool_service import running_tool
from tests.fakes import Script, ScriptedEngine, text_model

VOCAB = 300
SHAPES: dict[Workflow, Shape] = {
    "react": Shape(workflow="react", calls=3, tokens=4, spec_tokens=5, ask_tokens=3, observation_tokens=2),
    "codeact": Shape(workflow="codeact", calls=3, tokens=4, spec_tokens=5, ask_tokens=3, observation_tokens=2),
    "swarm": Shape(workflow="swarm", calls=6, tokens=2, spec_tokens=5, ask_tokens=3),
}


def token_after(history: list[int]) -> int:
    return 10 + sum(at * token for at, token in enumerate(history, 1)) % 200


def by_history() -> Script:
    """Repeats a token that the whole history decides."""
    return lambda request, index: [[token_after(list(request.prompt_ids))]] * request.sampling.max_tokens


class Model(Link):
    """Answers completions as the scripted engine does."""

    def __init__(self) -> None:
        super().__init__("http://nowhere")
        self.bodies: list[Mapping[str, Any]] = []

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        self.bodies.append({**body, "prompt": list(body["prompt"])})
        new = [token_after(body["prompt"])] * body["max_tokens"]
        return {"choices": [{"token_ids": new}]}, {"x-cost-kv-kib-seconds": "1.5"}


class Tool(Link):
    """Notes calls."""

    def __init__(self) -> None:
        super().__init__("http://nowhere")
        self.calls: list[Any] = []

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        self.calls.append((path, body["number"]))
        return {}, {}


class Tools:
    """The same tool for programs."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def within(self, guard: Guard) -> Tools:
        """They are no programs."""
        return self

    async def find(self, name: str) -> ToolInfo:
        return ToolInfo(name=name, description="", parameters={"type": "object"}, effect="pure", kind="http")

    async def call(self, name: str, arguments: Mapping[str, Any], key: str | None = None) -> ToolResult:
        assert name == TOOL
        self.calls.append(arguments["number"])
        return ToolResult(text="fine")


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    text = text_model()
    made = Runtime(ScriptedEngine(text, by_history()), text, sandbox=PoolOptions(min_workers=1, max_workers=2))
    yield made
    await made.aclose()


async def run_program(runtime: Runtime, body: Mapping[str, Any], tools: Tools) -> list[int]:
    extension = body["extension"]
    program = await runtime.check_program(extension["source"])
    run = await runtime.run_program(
        program,
        ProgramRequest(prompt=body["prompt"], args=extension["args"]),
        world=World(tools=cast("ToolCatalog", tools)),
    )
    found: list[int] = (await run.result()).result["tokens"]
    return found


@pytest.mark.parametrize("workflow", SHAPES)
async def test_a_program_and_a_client_s_loop_generate_the_same_and_call_the_same(
    runtime: Runtime, workflow: Workflow
) -> None:
    shape = SHAPES[workflow]
    (task,) = tasks(shape, 1, round_number=0, vocab_size=VOCAB)
    model, tool, tools = Model(), Tool(), Tools()
    spent = await loop(task, model, tool, {"model": "tiny"})
    tokens = await run_program(runtime, program_body(task), tools)
    assert tokens == spent.tokens
    assert len(tokens) == (shape.calls + (workflow != "swarm")) * shape.tokens
    wanted = list(range(shape.calls)) if workflow == "react" else []
    assert tools.calls == [number for _, number in tool.calls] == wanted
    assert spent.kv_kib_s == 1.5 * len(model.bodies)


@pytest.mark.parametrize("combination", COMBINATIONS)
async def test_tailored_programs_call_every_tool_and_generate_as_many_tokens(
    runtime: Runtime, combination: tuple[bool, bool, bool]
) -> None:
    (task,) = tasks(SHAPES["react"], 1, round_number=0, vocab_size=VOCAB)
    _, early, drop = combination
    tools = Tools()
    tokens = await run_program(runtime, program_body(task, early=early, drop=drop), tools)
    assert tools.calls == [0, 1, 2]
    assert len(tokens) == 16


def test_runs_share_specifications_and_nothing_else() -> None:
    first, second = tasks(SHAPES["react"], 2, round_number=0, vocab_size=VOCAB)
    (later,) = tasks(SHAPES["react"], 1, round_number=1, vocab_size=VOCAB)
    assert first.specs == second.specs == later.specs
    assert len({tuple(task.ask) for task in (first, second, later)}) == 3
    assert first.prompt[: first.spans()[-1][1]] == first.beginnings()[0]
    assert min(first.prompt) >= 100


def test_an_action_is_the_same_in_a_script_and_in_a_client() -> None:
    lines = SOURCES["codeact"].split("async def main")[0]
    space: dict[str, Any] = {}
    exec(lines, space)
    assert [space["run_code"](number) for number in range(5)] == [run_code(number) for number in range(5)]


def test_effects_are_what_factors_multiply_by() -> None:
    logs = {
        (keep, early, drop): math.log(
            5.0 * (2.0 if keep else 1.0) * (1.5 if early else 1.0) * (1.25 if keep and drop else 1)
        )
        for keep, early, drop in COMBINATIONS
    }
    found = effects(logs)
    assert found["early"] == pytest.approx(1.5)
    assert found["keep"] == pytest.approx(2.0 * math.sqrt(1.25))
    assert found["drop"] == found["keep x drop"] == pytest.approx(math.sqrt(1.25))
    assert found["keep x early"] == found["keep x early x drop"] == pytest.approx(1.0)


def measured(whole_s: float, texts: list[list[int]]) -> Measured:
    return Measured(spans_s=[1.0, 3.0], whole_s=whole_s, kv_mib_s=None, texts=texts)


def test_a_summary_says_how_much_of_the_text_is_the_same() -> None:
    base, other = measured(2.0, [[1, 2], [3, 4]]), measured(1.0, [[1, 2], [3, 9]])
    assert same_share(other.texts, base.texts) == 0.75
    found = summary([other], [base])
    assert (found["ratio"], found["same"], found["p50_s"], found["runs_per_s"]) == (2.0, 0.75, 3.0, 2.0)
    assert found["kv_mib_s"] is None


class Counting(Bench):
    """Runs nothing, and remembers of how many calls the runs were."""

    def __init__(self) -> None:
        self.num_calls: list[int] = []

    async def loops(self, work: Sequence[Task], rtt_s: float) -> Measured:
        return self._found(work)

    async def programs(self, work: Sequence[Task], combination: Combination = (True, False, False)) -> Measured:
        return self._found(work)

    def _found(self, work: Sequence[Task]) -> Measured:
        self.num_calls.append(work[0].shape.calls)
        return measured(2.0, [[1, 2], [3, 4]])


async def test_what_is_measured_is_told_part_by_part_and_names_the_size_of_its_runs() -> None:
    options = parsed(
        *("--workflows", "react", "swarm", "--instances", "2", "--rounds", "1"),
        *("--calls", "5", "--swarm-calls", "6", "--factorial-calls", "3"),
    )
    bench, parts = Counting(), list[tuple[list[str], int]]()
    tables, results = await measure(
        bench, options, lambda found, so_far: parts.append(([one.title for one in found], len(so_far["arms"])))
    )
    assert bench.num_calls == [2, 2, 2, 5, 5, 5, 2, 2, 2, 6, 6, 6, *[3] * 8]
    assert [(len(titles), num_rows) for titles, num_rows in parts] == [(1, 3), (1, 6), (3, 6)]
    assert "5 calls a run (6 in Swarm)" in tables[0].title
    assert "of 3 calls" in tables[1].title
    assert len(results["factorial"]) == 8


def test_the_tool_answers_late_on_a_connection_that_stays_open() -> None:
    async def ask(url: str) -> float:
        async with Link(url) as link:
            begin_s = time.perf_counter()
            for number in range(2):
                answer, _ = await link.post(f"/{TOOL}", {"number": number})
                assert "found" in answer
            return time.perf_counter() - begin_s

    with running_tool(0.05) as url:
        assert asyncio.run(ask(url)) >= 0.1


async def test_an_answer_that_is_no_success_is_an_error_with_its_text() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\ntoo busy!")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with Link(f"http://127.0.0.1:{port}") as link:
            with pytest.raises(CallFailed, match=r"503 Busy.*too busy!"):
                await link.post("/v1/completions", {})


def test_what_is_counted_adds_up() -> None:
    spent = Spent()
    assert spent.add({"choices": [{"token_ids": [1, 2]}]}, None) == [1, 2]
    assert (spent.kv_kib_s, spent.tokens) == (None, [1, 2])
    assert spent.add({"choices": [{"token_ids": [3]}]}, 2.5) == [3]
    assert (spent.kv_kib_s, spent.tokens) == (2.5, [1, 2, 3])


async def test_metrics_are_read_by_their_names() -> None:
    text = b"# HELP wye_a b\nwye_a_total 7.0\nwye_a 3.0\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"GET /metrics ")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Link(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as link:
        assert await link.metric("wye_a_total") == 7.0
        assert await link.metric("wye_b") == 0.0


def test_the_chart_has_a_bar_for_each_row_and_is_up_to_date() -> None:
    arms = [{"workflow": "react", "way": way, "runs_per_s": 1.0 + at} for at, way in enumerate(("local", "program"))]
    factorial = [{"keep": True, "early": False, "drop": False, "runs_per_s": 4.0}]
    drawn = agents_chart.draw({"arms": arms, "factorial": factorial})
    assert drawn.count("<rect") == 1 + 3
    assert drawn.count('width="500.0"') == 2
    written = agents_chart.PATH.read_text(encoding="utf-8") if agents_chart.PATH.exists() else None
    assert written == agents_chart.chart(), "run `make docs`"
