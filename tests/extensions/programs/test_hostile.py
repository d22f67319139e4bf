"""Scripts that mean harm: each costs its own run, is told why, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import psutil
import pytest

from extensions.errors import ScriptCrashed, ScriptError, ScriptLimitExceeded
from extensions.programs.contexts import MAX_FORKS
from extensions.programs.jsons import MAX_DEPTH
from extensions.programs.request import EventEmitted
from tests.extensions.programs.stage import ANSWER, Stage, main_of, scripted_stage, until
from tests.fakes import ScriptedEngine, repeats

CATCH_ALL = """
while True:
    try:
        {}
    except BaseException:
        pass
"""


def catching(line: str) -> str:
    """A `main` that does something for ever and catches whatever comes of it."""
    return main_of(CATCH_ALL.format(line))


LIMITS: list[tuple[str, dict[str, Any], str]] = [
    ("exec_s", {"exec_s": 0.2}, main_of("while True:\n    pass")),
    ("exec_s", {"exec_s": 0.2}, catching("pass")),
    ("exec_s", {"exec_s": 0.2}, "while True:\n    pass\n" + main_of("return 1")),
    ("exec_s", {"exec_s": 0.2}, main_of("x = 3\nwhile True:\n    x = x * x % 1000007")),
    ("memory_bytes", {"memory_bytes": 2**22}, main_of("x = []\nwhile True:\n    x.append('a' * 1000)")),
    ("memory_bytes", {"memory_bytes": 2**22}, "x: list[str] = []\n" + catching("x.append('a' * 1000)")),
    ("memory_bytes", {"memory_bytes": 2**22}, main_of("return len('a' * 10**12)")),
    ("memory_bytes", {"memory_bytes": 2**22}, main_of("return 2 ** (10 ** 9)")),
    ("recursion", {"recursion": 50}, "def down():\n    down()\n\n" + main_of("down()")),
    ("wall_s", {"wall_s": 0.2}, main_of("await lm.sleep(0.19)\nawait lm.sleep(0.19)")),
    ("wall_s", {"wall_s": 0.2}, main_of("await asyncio.sleep(3600)")),
    ("wall_s", {"wall_s": 0.2}, main_of("import time\ntime.sleep(3600)")),
    ("wall_s", {"wall_s": 0.2}, catching("await lm.sleep(0.1)")),
    ("log_bytes", {"log_bytes": 5000}, main_of("while True:\n    print('x' * 1000)")),
    ("log_bytes", {"log_bytes": 5000}, main_of("print('x' * 1000000)\nawait lm.sleep(10)")),
    ("host_calls", {"host_calls": 100}, main_of("while True:\n    lm.now()")),
    ("host_calls", {"host_calls": 100}, catching("await lm.tokenize('x')")),
    ("host_calls", {"host_calls": 100}, main_of("while True:\n    await (await lm.context()).release()")),
    (
        "host_calls",
        {"host_calls": 100},
        main_of("ctx = await lm.context()\nwhile True:\n    ctx.length"),
    ),
    ("contexts", {"contexts": 10}, main_of("ctx = await lm.context('x')\nawait ctx.fork(10)")),
    ("contexts", {"contexts": 10}, main_of("kept = [await lm.context() for at in range(11)]")),
    ("output_bytes", {"output_bytes": 5000}, main_of("while True:\n    await lm.emit('x' * 100)")),
    ("output_bytes", {"output_bytes": 5000}, main_of("await lm.emit_event('x', 'y' * 5000)")),
    ("output_bytes", {"output_bytes": 5000}, main_of("return 'x' * 5001")),
    ("result_bytes", {"result_bytes": 5000}, main_of("return ['x' * 5000]")),
    ("decode_tokens", {"decode_tokens": 30}, catching("await (await lm.context('x')).generate(max_tokens=8)")),
    ("decode_tokens", {"decode_tokens": 30}, main_of("await (await lm.context('x')).generate(max_tokens=1000)")),
    (
        "prefill_tokens",
        {"prefill_tokens": 100},
        main_of("ctx = await lm.context('hello ' * 500)\nawait ctx.prefill()"),
    ),
    (
        "prefill_tokens",
        {"prefill_tokens": 100},
        catching("await (await lm.context('hello world')).prefill()"),
    ),
]


@pytest.mark.parametrize(("limit", "limits", "source"), LIMITS, ids=[f"{one[0]}-{at}" for at, one in enumerate(LIMITS)])
async def test_a_limit_ends_the_run_and_nothing_catches_it(limit: str, limits: dict[str, Any], source: str) -> None:
    tasks = asyncio.all_tasks()
    text_stage = scripted_stage(repeats(300))
    with pytest.raises(ScriptLimitExceeded) as caught:
        async with asyncio.timeout(200):
            await text_stage.run(source, limits=limits)
    error = caught.value
    assert (error.limit, error.allowed) == (limit, limits[limit])
    assert error.used >= error.allowed
    assert limit in str(error)
    assert (await text_stage.run(main_of("return 'well'"))).content == "well"
    await text_stage.aclose()
    await until(lambda: asyncio.all_tasks() <= tasks)


async def test_too_many_contexts_can_be_caught_and_released(stage: Stage) -> None:
    seen = await stage.value(
        """
        kept = []
        try:
            while True:
                kept.append(await lm.context("x"))
        except MemoryError as error:
            text = str(error)
        for ctx in kept:
            await ctx.release()
            await ctx.release()
        more = await (await lm.context("x")).fork(2)
        return [len(kept), text.split(":")[0], len(more)]
        """,
        limits={"contexts": 5},
    )
    assert seen == [5, "limit_exceeded", 2]


async def test_a_million_forks_are_refused_before_any_is_made(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("x")
        try:
            await ctx.fork(10 ** 6)
        except ValueError as error:
            return [str(error)]
        """
    )
    assert seen == [f"invalid_argument: n must be a whole number from 1 to {MAX_FORKS}"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{1, 2}", "Object of type set is not JSON serializable"),
        ("b'x'", "bytes is not JSON serializable"),
        ("lm", "is not JSON serializable"),
        ("await lm.context('x')", "is not JSON serializable"),
        ("main", "is not JSON serializable"),
        ("{(1, 2): 3}", "keys must be str"),
        ("float('nan')", "NaN is no JSON number"),
        ("[1e999]", "Infinity is no JSON number"),
        ("{'content': 'x', 'tool_calls': [{'arguments': 1}]}", "tool_calls[0] has no name"),
        ("{'content': 'x', 'tool_calls': 3}", "tool_calls are no list"),
        ("{'content': 3}", "content is no text"),
        ("{'content': ['x']}", "content is no text"),
        ("{'content': 'x', 'reasoning_content': 4}", "reasoning_content is no text"),
    ],
)
async def test_a_result_that_is_no_json_is_told_so(stage: Stage, value: str, message: str) -> None:
    with pytest.raises(ScriptError) as caught:
        await stage.run(main_of(f"return {value}"))
    assert message in str(caught.value)


async def test_a_result_nested_without_end_is_refused(stage: Stage) -> None:
    with pytest.raises((ScriptError, ScriptLimitExceeded)):
        await stage.run(main_of("x: list = []\nfor at in range(100000):\n    x = [x]\nreturn x"))
    with pytest.raises((ScriptError, ScriptLimitExceeded)):
        await stage.run(main_of("x: list = []\nx.append(x)\nreturn x"))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("open('/etc/passwd').read()", "PermissionError"),
        ("open('/etc/passwd', 'w')", "PermissionError"),
        ("import os\nos.environ['HOME']", "RuntimeError"),
        ("from pathlib import Path\nPath('/etc/passwd').read_text()", "PermissionError"),
        ("from pathlib import Path\nlist(Path('/').iterdir())", "PermissionError"),
    ],
)
async def test_files_and_environment_are_out_of_reach(stage: Stage, line: str, kind: str) -> None:
    with pytest.raises(ScriptError) as caught:
        await stage.run(main_of(line), checks=False)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "line",
    [
        "return lm._scope",
        "return lm.__dict__",
        "return lm.context.__globals__",
        "return request.__class__.__mro__",
        "return (await lm.context('x'))._live",
        "return type(lm)()",
        "return type(lm).__init__(lm)",
        "return [name for name in dir(lm) if 'scope' in name][0]",
        "return getattr(lm, '_' + 'scope')",
        "return getattr(lm, 'call_' + 'method')('x', (), {})",
        "return getattr(await lm.context('x'), 'let_' + 'go')()",
        "return eval('lm._scope')",
        "return __import__('os').system('true')",
    ],
)
async def test_a_handle_shows_nothing_but_what_it_is_for(stage: Stage, line: str) -> None:
    with pytest.raises(ScriptError) as caught:
        await stage.run(main_of(line), checks=False)
    assert "extensions" not in str(caught.value)


async def test_a_handle_cannot_be_made_up(stage: Stage) -> None:
    seen = await stage.value(
        """
        class Mark:
            def __init__(self):
                self.length = 0
                self.scope = 1

        ctx = await lm.context("hello")
        told = []
        for made in (Mark(), "mark", 3, None, {"length": 0}, ctx, lm):
            try:
                await ctx.rewind(made)
            except ValueError as error:
                told.append(str(error))
        return [len(told), set(told) == {told[0]}, told[0]]
        """,
        checks=False,
    )
    assert seen == [7, True, "invalid_argument: mark must be what ctx.mark() returned"]


async def test_what_only_looks_like_a_constraint_is_none(stage: Stage) -> None:
    seen = await stage.value(
        """
        class Constraint:
            spec = "regex"

        ctx = await lm.context("hello")
        told = []
        for made in (Constraint(), 3, "regex", [], {}, {"regex": 3}, {"regex": "a", "choice": ["b"]}, {"x": 1}, lm):
            try:
                await ctx.generate(constrain=made)
            except ValueError as error:
                told.append(str(error).split(":")[0])
        return told
        """,
        checks=False,
    )
    assert seen == ["constraint_invalid"] * 9


async def test_a_handle_of_another_run_is_nothing_here(stage: Stage) -> None:
    """A run gives its handles away as data; the ids of another run mean nothing to this one."""
    first = await stage.start(main_of("ctx = await lm.context('secret')\nawait lm.emit('x')\nawait lm.sleep(30)"))
    async for _ in first:
        break
    contexts = stage.engine
    assert isinstance(contexts, ScriptedEngine)
    second = await stage.start(
        main_of("""
            ctx = await lm.context("mine")
            told = [repr(lm), repr(ctx), str(id(ctx))]
            try:
                hash(ctx)
            except TypeError:
                pass
            await lm.emit("x")
            return told
        """)
    )
    outcome = await second.result()
    for context_id in contexts.contexts.histories:
        assert all(context_id not in told for told in outcome.result)
    await first.aclose()
    stage.check_rest()


async def test_names_of_what_another_run_holds_open_nothing(stage: Stage) -> None:
    """Whoever guesses what the server calls another run's context has nothing that takes such a name."""
    first = await stage.start(
        main_of("ctx = await lm.context('secret')\nawait ctx.prefill()\nawait lm.emit('x')\nawait lm.sleep(60)")
    )
    async for _ in first:
        break
    engine = stage.engine
    assert isinstance(engine, ScriptedEngine)
    before = {name: list(history) for name, history in engine.contexts.histories.items()}
    assert before
    second = await stage.start(
        main_of("""
            class Context:
                def __init__(self, name, number):
                    self.context_id = self.id = self.name = name
                    self.handle = number

            mine = await lm.context("mine")
            codes = []

            async def told(call):
                try:
                    await call
                except (ValueError, LookupError, RuntimeError, TypeError) as error:
                    codes.append(str(error).split(":")[0])
                else:
                    codes.append("went on")

            for name in request.args["names"]:
                for made in (name, Context(name, 1), {"context_id": name, "handle": 1}):
                    await told(mine.rewind(made))
                    await told(mine.append(made if made is not name else [made]))
                    await told(mine.generate(sampler=made))
                    await told(mine.generate(constrain=made))
                    await told(lm.forward().embed_next([made]))
                    await told(lm.forward().state([made]))
                    await told(lm.prefix(made))
            return [sorted(set(codes)), len(codes), (await mine.info()).length == mine.length]
        """),
        checks=False,
        args={"names": list(before)},
        id="run-2",
    )
    codes, count, is_whole = (await second.result()).result
    assert "went on" not in codes
    assert count == 21 * len(before)
    assert is_whole
    assert {name: list(history) for name, history in engine.contexts.histories.items()} == before
    await first.aclose()
    stage.check_rest()


async def test_contexts_that_main_leaves_behind_are_released(stage: Stage) -> None:
    source = "kept: list = []\n\n" + main_of("""
        ctx = await lm.context("x")
        kept.extend(await ctx.fork(20))
        await ctx.generate(max_tokens=2)
        return 'done'
    """)
    outcome = await stage.run(source)
    assert outcome.usage.num_contexts == 21


async def test_calls_that_nobody_waits_for_end_with_main() -> None:
    held = scripted_stage(lambda request, index: [asyncio.Event()])
    outcome = await held.run(
        main_of("ctx = await lm.context('x')\na = ctx.generate()\nb = lm.sleep(100)\nreturn 'early'"), checks=False
    )
    assert outcome.content == "early"
    await held.aclose()


async def test_one_context_does_one_thing_at_a_time() -> None:
    gate = asyncio.Event()
    held = scripted_stage(lambda request, index: [gate, [300]])
    run = await held.start(
        main_of("""
            ctx = await lm.context("x")

            async def guarded(call):
                try:
                    await call
                    return "fine"
                except ValueError as error:
                    await lm.emit_event("told", str(error)[:34])

            return await asyncio.gather(guarded(ctx.generate()), guarded(ctx.generate()), guarded(ctx.append("y")))
        """)
    )
    told = []
    async for event in run:
        told.append(event)
        if len(told) == 2:
            gate.set()
    assert told == [EventEmitted("told", "invalid_argument: something else h")] * 2
    assert sorted(run.outcome.result, key=str) == [None, None, "fine"]
    await held.aclose()


async def test_a_released_context_says_so(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("x")
        await ctx.release()

        async def told(call):
            try:
                await call
            except ValueError as error:
                return str(error)

        return [await told(call) for call in (ctx.generate(), ctx.prefill(), ctx.fork(), ctx.mark(), ctx.info())]
        """
    )
    assert seen == ["invalid_argument: the context is released"] * 5


async def test_a_worker_that_is_killed_costs_its_own_run_and_is_replaced(stage: Stage) -> None:
    before = {child.pid for child in psutil.Process().children()}
    alone = scripted_stage(max_workers=1)
    run = await alone.start(main_of("ctx = await lm.context('x')\nawait lm.emit('on')\nawait lm.sleep(100)"))
    async for _ in run:
        break
    (worker,) = (child for child in psutil.Process().children() if child.pid not in before)
    other = await stage.start(main_of("await lm.emit_event('on', 1)\nreturn 'other'"))
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(ScriptCrashed) as caught:
        await run.result()
    assert caught.value.can_retry
    assert (await other.result()).content == "other"
    assert (await alone.run(main_of("return 'next'"))).content == "next"
    await alone.aclose()


async def test_big_arguments_of_calls_are_told_or_limited(stage: Stage) -> None:
    for line in (
        "await lm.tokenize('x' * 3000000)",
        "await lm.decode([1] * 1000000)",
        "await lm.context([1] * 1000000)",
        "await (await lm.context('x')).append('x' * 3000000)",
        "await (await lm.context('x')).generate(stop=['x'] * 1000)",
        "await (await lm.context('x')).generate(stop_token_ids=[1] * 100000)",
        "await lm.emit_event('x' * 1000, 1)",
    ):
        with pytest.raises((ScriptError, ScriptLimitExceeded), match=r"invalid_argument|memory_bytes"):
            await stage.run(main_of(line))


async def test_a_deep_argument_harms_nobody(stage: Stage) -> None:
    for use, message in (
        ("lm.emit_event('x', x)", "data is nested too deep"),
        ("lm.emit_event('x', {'a': (1, x)})", "data is nested too deep"),
        ("lm.context(x)", "content must be a list of token ids"),
        ("lm.decode(x)", "tokens must be a list of token ids"),
        ("lm.constraint({'json_schema': x})", "json_schema must be a schema"),
        ("lm.constraint({'json_schema': {'enum': x}})", "deep"),
    ):
        source = main_of(f"x: list = []\nfor at in range(50000):\n    x = [x]\nawait {use}")
        with pytest.raises(ScriptError) as caught:
            await stage.run(source, checks=False)
        assert message in str(caught.value)
    assert (await stage.run(main_of("return 'well'"))).content == "well"


async def test_data_may_be_as_deep_as_is_said_and_no_deeper(stage: Stage) -> None:
    seen = await stage.value(
        """
        told = []
        for depth in (MAX, MAX + 1):
            x = 1
            for at in range(depth):
                x = [x] if at % 2 else {"a": x}
            try:
                await lm.emit_event("x", x)
                told.append("sent")
            except ValueError as error:
                told.append(str(error))
        return told
        """.replace("MAX", str(MAX_DEPTH)),
        checks=False,
    )
    refused = f"invalid_argument: data is nested too deep: lists and dicts may lie {MAX_DEPTH} deep within each other"
    assert seen == ["sent", refused]
    (event,) = stage.events
    assert isinstance(event, EventEmitted)
    depth, data = 0, event.data
    while isinstance(data, list | dict):
        depth, data = depth + 1, data[0] if isinstance(data, list) else data["a"]
    assert (depth, data) == (MAX_DEPTH, 1)


async def test_eight_hostile_runs_do_not_stop_a_ninth() -> None:
    crowd = scripted_stage(max_workers=9)
    spinning = [
        await crowd.start(main_of("while True:\n    pass"), limits={"exec_s": 3, "wall_s": 4}) for _ in range(8)
    ]
    async with asyncio.timeout(200):
        outcome = await crowd.run_beside("return (await (await lm.context('x')).generate()).text")
    assert outcome.content == ANSWER
    results = await asyncio.gather(*(run.result() for run in spinning), return_exceptions=True)
    assert all(isinstance(one, ScriptLimitExceeded) for one in results)
    await crowd.aclose()
