"""Checking a program before it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from extensions.errors import Diagnostic, ProgramInvalid
from extensions.programs.checking import ProgramChecker
from extensions.sandbox.pool import PoolOptions, WorkerPool

MAX_BYTES = 64 * 2**10

BEST_OF_N = '''"""Best of n: sample n answers from one prompt.

More about it.
"""
EXTENSION = {"name": "best_of_n", "version": "1.0.0",
             "params": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "default": 4}}}}

async def main(request, lm):
    prompt = await lm.context(request.messages)
    branches = await prompt.fork(request.args["n"])
    answers = await asyncio.gather(*[b.generate(max_tokens=120, seed=i) for i, b in enumerate(branches)])
    best = max(answers, key=lambda a: a.mean_logprob)
    return best.text
'''


@pytest.fixture
async def checker() -> AsyncIterator[ProgramChecker]:
    pool = WorkerPool(PoolOptions(min_workers=1, max_workers=2))
    yield ProgramChecker(pool)
    assert pool.num_running == 0
    await pool.aclose()


async def problems(checker: ProgramChecker, source: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(ProgramInvalid) as caught:
        await checker.check(source, MAX_BYTES)
    return caught.value.diagnostics


async def test_a_program_is_what_its_header_says(checker: ProgramChecker) -> None:
    program = await checker.check(BEST_OF_N, MAX_BYTES)
    assert (program.name, program.version) == ("best_of_n", "1.0.0")
    assert program.description == "Best of n: sample n answers from one prompt."
    assert program.params is not None
    assert program.params["properties"]["n"]["default"] == 4


async def test_a_program_needs_no_header(checker: ProgramChecker) -> None:
    program = await checker.check("async def main(request, lm):\n    return 'x'\n", MAX_BYTES)
    assert (program.name, program.version, program.params) == ("", "", None)


@pytest.mark.parametrize(
    ("source", "line", "column", "message"),
    [
        ("async def main(request, lm):\n    return lm.nothing()\n", 2, 12, "has no attribute `nothing`"),
        ("async def main(request, lm): return lm.nothing()\n", 1, 37, "has no attribute `nothing`"),
        ("async def main(\n    request,\n    lm,\n):\n    return lm.nothing()\n", 5, 12, "`nothing`"),
        (
            "async def main(request, lm):\n    ctx = await lm.context('a')\n    await ctx.generate(max_token=3)\n",
            3,
            24,
            "`max_token` does not match",
        ),
        ("async def main(request, lm):\n    return (await lm.context('a')).generate().text\n", 2, 12, "`text`"),
        ("async def main(request, lm):\n    return await lm.tokenize('é' + nothing)\n", 2, 36, "`nothing`"),
        ("async def main(request, lm):\n    return undefined\n", 2, 12, "`undefined`"),
        ("import socket\nasync def main(request, lm):\n    return 1\n", 1, 8, "socket"),
        ("async def main(request, lm):\n    yield 1\n", 2, 5, "programs cannot use yield"),
        ("async def main(request, lm):\n    async with lm:\n        pass\n", 2, 16, "async with"),
        ("class A(ValueError): pass\nasync def main(request, lm):\n    return 1\n", 1, 1, "class inheritance"),
        ("async def main(request, lm)\n    return 1\n", 1, 28, "expected ':'"),
        ("async def main(request, lm):\nreturn 1\n", 2, 1, "expected an indented block"),
        ("x = 1\n", 1, 1, "a program needs 'async def main(request, lm)'"),
        ("def main(request, lm):\n    return 1\n", 1, 1, "main must be an async function"),
        ("\nasync def main(request):\n    return 1\n", 2, 1, "main must take the two arguments"),
        ("\nasync def main(request, lm, more):\n    return 1\n", 2, 1, "main must take the two arguments"),
    ],
)
async def test_a_problem_is_told_with_its_place_in_the_script(
    checker: ProgramChecker, source: str, line: int, column: int, message: str
) -> None:
    found = await problems(checker, source)
    assert [(one.line, one.column) for one in found] == [(line, column)]
    assert message in found[0].message


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("[1]", "EXTENSION must be a dict"),
        ("make()", "EXTENSION must be a literal"),
        ("{}", "EXTENSION needs a 'name'"),
        ("{'name': 'x', 'colour': 'red'}", "EXTENSION has no key 'colour'"),
        ("{'name': 'Bad Name'}", "the name must be lower-case"),
        ("{'name': 'x', 'version': '1.0'}", "semantic version"),
        ("{'name': 'x', 'version': 1}", "semantic version"),
        ("{'name': 'x', 'params': {'properties': {'n': {'type': 'integr'}}}}", "params is no JSON Schema"),
        ("{'name': 'x', 'params': {'type': 'string'}}", "its type must be 'object'"),
        ("{'name': 'x', 'params': {'$ref': 'http://169.254.169.254/'}}", "params is no JSON Schema"),
        ("{'name': 'x', 'params': {'$ref': 'file:///etc/passwd'}}", "params is no JSON Schema"),
        ("{'name': 'x', 'ext_api': 2}", "this server speaks ext_api 1"),
    ],
)
async def test_a_wrong_header_is_refused(checker: ProgramChecker, header: str, message: str) -> None:
    source = f"def make():\n    return {{}}\nEXTENSION = {header}\nasync def main(request, lm):\n    return 1\n"
    found = await problems(checker, source)
    assert message in found[0].message
    assert found[0].line == 3


async def test_a_header_after_another_is_refused(checker: ProgramChecker) -> None:
    source = "EXTENSION = {'name': 'a'}\nEXTENSION = {'name': 'b'}\nasync def main(request, lm):\n    return 1\n"
    found = await problems(checker, source)
    assert (found[0].line, found[0].message) == (2, "EXTENSION is assigned more than once")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (" \n", "empty"),
        ("#" * (MAX_BYTES + 1), "characters"),
        ("# " + "é" * (MAX_BYTES // 2), "bytes"),
        ("x = '\ud800'\n", "no valid Unicode"),
        ("x = '\0'\n", "NUL"),
    ],
)
async def test_text_that_cannot_be_a_program_is_refused(checker: ProgramChecker, source: str, message: str) -> None:
    found = await problems(checker, source)
    assert message in found[0].message


@pytest.mark.parametrize(
    "source",
    [
        "x = " + "(" * 5000 + ")" * 5000,
        "x = " + "-" * 30_000 + "1",
        "x = " + "+".join(["1"] * 20_000),
        "\n".join(" " * depth + "if 1:" for depth in range(90)) + "\n" + " " * 90 + "pass",
    ],
)
async def test_a_script_made_to_break_the_parser_is_answered(checker: ProgramChecker, source: str) -> None:
    assert await problems(checker, source)


async def test_a_script_whose_check_has_no_end_is_refused_and_may_be_tried_again() -> None:
    pool = WorkerPool(PoolOptions(min_workers=1, max_workers=1, grace_s=0.1))
    checker = ProgramChecker(pool, check_s=0.2)
    source = "x = " + "[" * 90 + "]" * 90 + "\nasync def main(request, lm):\n    return x\n"
    for _ in range(2):
        assert "took more than 0.2 s" in (await problems(checker, source))[0].message
    assert checker.num_checked == 2
    assert await ProgramChecker(pool).check("async def main(request, lm):\n    return 1\n", MAX_BYTES)
    await pool.aclose()


async def test_nothing_of_a_script_runs_when_it_is_checked(checker: ProgramChecker) -> None:
    source = "while True:\n    pass\n\nasync def main(request, lm):\n    return 1\n"
    async with asyncio.timeout(60):
        await checker.check("raise ValueError\n" + source, MAX_BYTES)


async def test_a_script_is_checked_once_however_often_it_comes(checker: ProgramChecker) -> None:
    programs = await asyncio.gather(*(checker.check(BEST_OF_N, MAX_BYTES) for _ in range(8)))
    assert len({id(program) for program in programs}) == 1
    await problems(checker, "nothing\n")
    await problems(checker, "nothing\n")
    assert checker.num_checked == 2


async def test_a_check_that_is_no_longer_wanted_harms_no_other(checker: ProgramChecker) -> None:
    first = asyncio.ensure_future(checker.check(BEST_OF_N, MAX_BYTES))
    second = asyncio.ensure_future(checker.check(BEST_OF_N, MAX_BYTES))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).name == "best_of_n"


async def test_annotations_of_the_script_are_its_own(checker: ProgramChecker) -> None:
    source = "async def main(request: Request, lm: LM) -> str:\n    return request.nothing\n"
    found = await problems(checker, source)
    assert (found[0].line, found[0].column) == (2, 12)
