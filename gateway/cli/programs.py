"""`wye run`, `wye check`, `wye new`: programs from a shell."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.console import messages, output, print_error, print_json
from gateway.cli.exits import Exit
from gateway.cli.options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from extensions.errors import Diagnostic
    from extensions.programs.program import Program

DEFAULT_URL = "http://127.0.0.1:8000"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")

_NEW = '''"""What this program does, in a sentence."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers; the server knows these names by itself
    from extensions.sandbox.stubs import LM, Request

EXTENSION = {
    "name": "NAME",
    "version": "0.1.0",
    "params": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 16, "default": 3}},
        "additionalProperties": False,
    },
}


async def main(request: Request, lm: LM):
    prompt = await lm.context(request.messages)
    branches = await prompt.fork(request.args["n"])
    answers = await asyncio.gather(
        *[branch.generate(max_tokens=60, temperature=0.9, seed=i) for i, branch in enumerate(branches)]
    )
    best = max(answers, key=lambda answer: answer.mean_logprob)
    return best.text
'''

ScriptArgument = Annotated[
    Path, typer.Argument(help="File of the program; - reads standard input.", allow_dash=True, dir_okay=False)
]


def new_program(
    name: Annotated[str, typer.Argument(help="Small letters, digits and underscores.")],
    directory: Annotated[Path, typer.Option("--directory", help="Where to write it.", file_okay=False)] = Path(),
) -> None:
    """Begin a program: write a file that runs as it is."""
    if not _NAME.fullmatch(name):
        raise typer.BadParameter("small letters, digits and underscores, a letter first", param_hint="name")
    path = directory / f"{name}.py"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_NEW.replace("NAME", name))
    except FileExistsError:
        print_error(f"{path} is there already")
        raise typer.Exit(Exit.FAILURE) from None
    messages().print(f"wrote {path}; try it: wye run {path} --prompt 'Hello!'", markup=False, soft_wrap=True)


def check_program(script: ScriptArgument, json: JsonOption = False) -> None:
    """Say what is wrong with a program, without a server and without running it."""
    source = _read(script)
    program, diagnostics = _check(source)
    if json:
        from gateway.errors import diagnostics_body

        print_json({"valid": program is not None, "diagnostics": diagnostics_body(diagnostics)})
    else:
        for one in diagnostics:
            print(f"{script}:{one.line}:{one.column}: {one.severity}: {one.message}")
        if program is not None:
            title = f"{program.name} {program.version}".strip() or "the program"
            messages().print(f"{title} can run ({program.digest})", markup=False, soft_wrap=True)
    if program is None:
        raise typer.Exit(Exit.FAILURE)


def _read(script: Path) -> str:
    try:
        return sys.stdin.read() if str(script) == "-" else script.read_text("utf-8")
    except UnicodeDecodeError:
        raise typer.BadParameter("it is no UTF-8 text", param_hint="script") from None


def _check(source: str) -> tuple[Program | None, Sequence[Diagnostic]]:
    import asyncio

    from extensions.errors import ProgramInvalid
    from extensions.programs.checking import ProgramChecker
    from extensions.programs.limits import ProgramLimits
    from extensions.sandbox.pool import PoolOptions, WorkerPool

    async def check() -> Program:
        pool = WorkerPool(PoolOptions(min_workers=1, max_workers=1))
        try:
            return await ProgramChecker(pool).check(source, ProgramLimits().source_bytes)
        finally:
            await pool.aclose()

    try:
        return asyncio.run(check()), ()
    except ProgramInvalid as error:
        return None, error.diagnostics


def run_program(
    program: Annotated[str, typer.Argument(help="File of a program, - for standard input, NAME, or NAME@VERSION.")],
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What the user says.")] = "",
    system: Annotated[str, typer.Option("--system", help="What the system says before it.")] = "",
    arg: Annotated[list[str] | None, typer.Option("--arg", help="NAME=VALUE, JSON or text; may be repeated.")] = None,
    limit: Annotated[list[str] | None, typer.Option("--limit", help="NAME=NUMBER; may be repeated.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model to name; any if left out.")] = None,
    url: Annotated[str, typer.Option("--url", envvar="WYE_URL", help="Server to run it on.")] = DEFAULT_URL,
    api_key: Annotated[str, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Key to send.")] = "",
    json: JsonOption = False,
) -> None:
    """Run a program on a server and show what happens: its text, or its result if it has none, to standard output, the
    rest to standard error."""
    from gateway.cli.program_client import RunFailed, run

    body: dict[str, Any] = {
        "messages": [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": prompt}],
        "extension": {
            **program_of(program),
            "args": json_pairs(arg, "--arg"),
            "limits": json_pairs(limit, "--limit"),
            "trace": not json,
        },
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if model is not None:
        body["model"] = model
    try:
        done = run(url, api_key, body, quiet=json)
    except RunFailed as error:
        if error.details:
            messages().print(error.details, markup=False, soft_wrap=True)
        print_error(error.message)
        raise typer.Exit(Exit.UNAVAILABLE if error.is_unreachable else Exit.FAILURE) from None
    if json:
        print_json(done)
    else:
        output().print()


def program_of(program: str) -> dict[str, Any]:
    """A program as requests name it: the text of a file, or the name of one that the server knows."""
    if program == "-" or Path(program).is_file() or program.endswith(".py"):
        return {"source": _read(Path(program))}
    return {"name": program}


def json_pairs(given: list[str] | None, option: str) -> dict[str, Any]:
    """What NAME=VALUE options say; values are JSON where they can be.

    Raises:
        typer.BadParameter: One is none.
    """
    import json

    pairs: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        try:
            pairs[name] = json.loads(value)
        except ValueError:
            pairs[name] = value
    return pairs
