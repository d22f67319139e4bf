"""What programs use and the sandbox does not have is said before they run, with where and what there is instead."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from extensions.errors import Diagnostic, ProgramInvalid
from extensions.programs.checking import ProgramChecker
from extensions.programs.uses import Use
from extensions.sandbox import surroundings
from extensions.sandbox.pool import PoolOptions, WorkerPool
from extensions.sandbox.surroundings import LACKING, MODULES, lacking

MAX_BYTES = 64 * 2**10


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WorkerPool]:
    """A pool that knows nothing yet of the sandbox."""
    monkeypatch.setattr(surroundings, "_known", {})
    pool = WorkerPool(PoolOptions(min_workers=1, max_workers=2))
    yield pool
    assert pool.num_running == 0
    await pool.aclose()


def use(module: str, name: str = "") -> Use:
    """Of something, somewhere."""
    return Use(module=module, name=name, line=1, column=1, end_line=1, end_column=2, is_guarded=False)


async def told(pool: WorkerPool, body: str, top: str = "") -> tuple[Diagnostic, ...]:
    """What a check says of a program with these lines."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    source = f"{top}\nasync def main(request, lm):\n{lines}\n"
    try:
        await ProgramChecker(pool).check(source, MAX_BYTES)
    except ProgramInvalid as error:
        return tuple(error.diagnostics)
    return ()


async def test_the_modules_that_are_named_are_those_that_there_are(pool: WorkerPool) -> None:
    public = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
    missing = {one.message.split("'")[1] for one in await lacking(pool, [use(name) for name in public])}
    assert sorted(set(public) - missing - {"posixpath"}) == sorted(MODULES)


@pytest.mark.parametrize(
    ("top", "body", "place", "message"),
    [
        ("import string", "return 1", (1, 8), "programs have no module 'string'; there are asyncio, base64"),
        ("", "import requests\nreturn 1", (3, 12), "programs have no module 'requests'"),
        ("import requests", "return 1", (1, 8), "use lm.http"),
        ("from uuid import uuid4", "return 1", (1, 1), "use random.randbytes(16).hex()"),
        ("from collections import OrderedDict", "return 1", (1, 25), "'collections' has no 'OrderedDict' in programs"),
        ("import os", "return os.environ['HOME']", (3, 12), "programs have no files and no environment: os.environ"),
        ("import os", "return os.path.exists('x')", (3, 12), "os.path.exists is refused"),
        ("import os as system", "return system.getpid()", (3, 12), "'os' has no 'getpid' in programs"),
        ("", "return await asyncio.wait_for(lm.sleep(1), 2)", (3, 18), "there are gather, run, sleep"),
        ("import sys", "'é'; sys.exit(1)", (3, 10), "use return"),
        ("", "return open('x').read()", (3, 12), "open is refused"),
        ("", "return input()", (3, 12), "programs have no input(); use lm.receive()"),
    ],
)
async def test_what_is_missing_is_an_error_with_its_place(
    pool: WorkerPool, top: str, body: str, place: tuple[int, int], message: str
) -> None:
    found = [one for one in await told(pool, body, top) if one.rule == LACKING]
    assert [(one.line, one.column) for one in found] == [place]
    assert message in found[0].message
    assert found[0].severity == "error"


async def test_it_is_said_once(pool: WorkerPool) -> None:
    assert [one.rule for one in await told(pool, "return math.nothing", "import numpy")] == [LACKING, LACKING]


@pytest.mark.parametrize(
    ("top", "body"),
    [
        ("import os, sys, random, time, datetime", "return [os.path.join('a', 'b'), sys.version_info[0], time.time()]"),
        ("from math import sumprod", "return [sumprod([1], [2]), math.dist([1], [2])]"),  # newer than Python here
        ("def open(x):\n    return x", "return open(1)"),
        ("", "math = request\nreturn math.args"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from collections import OrderedDict", "return 1"),
        ("try:\n    import heapq\nexcept ImportError:\n    pass", "return 1"),
        ("import math as m", "try:\n    return m.nothing  # type: ignore\nexcept AttributeError:\n    return 0"),
    ],
)
async def test_what_is_there_or_is_the_scripts_own_or_is_caught_is_no_error(
    pool: WorkerPool, top: str, body: str
) -> None:
    assert [one for one in await told(pool, body, top) if one.rule == LACKING and one.severity == "error"] == []


async def test_the_sandbox_is_asked_once(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [use("string"), use("math", "nothing"), use("", "input")]
    first = await lacking(pool, asked)
    monkeypatch.setattr(pool, "checkout", None)
    assert await lacking(pool, asked) == first
    assert len(first) == 3
