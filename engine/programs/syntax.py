"""From source text to the one function it holds: which sentences of Python a device program may use.

A program is an optional docstring, first values of its state (`state.x = ...`), and one function of assignments, loops
of fixed bounds, and a `return` at the end: `sample(...)` draws a token, `propose(...)` guesses the next ones. There are
no branches, so that every request of a batch does the same work; `where` chooses between values.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import lru_cache

from engine.programs.errors import ProgramInvalid

MAX_SOURCE_BYTES = 16_384
MAX_PARAMETERS = 32
MAX_DEPTH = 64
"""How deep expressions may be nested."""

SAMPLE, PROPOSE = "sample", "propose"
"""Names that the function may have: they say what it is for."""

STEP_INPUTS = frozenset({"logits", "lanes", "key", "prev", "step", "history", "places", "counts"})
"""Names that a function gets from the step if its parameters have them."""

UNKNOWN_TO_GUESSES = frozenset({"logits", "lanes"})
"""Inputs that are not there before the step that a guess is for."""

CONSTANTS = frozenset({"vocab", "vocab_size"})
"""Names that are always there: every token id, and how many."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A program whose sentences are allowed; its types are not known yet.

    Attributes:
        digest: Of the source.
        function: `SAMPLE` or `PROPOSE`.
        inputs: Which of `STEP_INPUTS` the function asks for.
        parameters: Its own parameters, in order.
        defaults: Their values where the source gives one.
        state: First values, by name.
        body: The function's sentences, the docstring left out.
    """

    digest: str
    function: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    defaults: dict[str, bool | int | float]
    state: dict[str, ast.expr]
    body: tuple[ast.stmt, ...]


@lru_cache(maxsize=256)
def parse(source: str) -> Parsed:
    """Reads a program.

    Raises:
        ProgramInvalid: It is too long, is no Python, or uses a sentence that programs do not have.
    """
    data = source.encode("utf-8", "surrogatepass")
    if len(data) > MAX_SOURCE_BYTES:
        raise ProgramInvalid(f"the source has {len(data)} bytes; {MAX_SOURCE_BYTES} are allowed", 1, 1)
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise ProgramInvalid(error.msg, error.lineno or 1, error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProgramInvalid(f"the source cannot be read: {error}", 1, 1) from None
    _check_depth(module)
    state: dict[str, ast.expr] = {}
    function = None
    for sentence in _without_docstring(module.body):
        if isinstance(sentence, ast.FunctionDef) and function is None:
            function = sentence
        elif isinstance(sentence, ast.Assign) and function is None:
            name, value = _first_value(sentence)
            if name in state:
                raise invalid(f"state.{name} has a first value already", sentence)
            state[name] = value
        else:
            raise invalid(f"a program is first values (state.x = ...) and one function `{SAMPLE}`", sentence)
    if function is None or function.name not in (SAMPLE, PROPOSE):
        where = (1, 1) if function is None else (function.lineno, function.col_offset + 1)
        raise ProgramInvalid(f"a program defines a function named `{SAMPLE}`, or `{PROPOSE}` to guess tokens", *where)
    inputs, parameters, defaults = _parameters(function)
    unknown = UNKNOWN_TO_GUESSES.intersection(inputs) if function.name == PROPOSE else ()
    if unknown:
        raise invalid(f"`{min(unknown)}` of a token are not there yet where it is guessed", function)
    body = tuple(_without_docstring(function.body))
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return Parsed(digest, function.name, inputs, parameters, defaults, state, body)


def invalid(message: str, at: ast.AST) -> ProgramInvalid:
    """An error at the place of a piece of the source."""
    return ProgramInvalid(message, getattr(at, "lineno", 1), getattr(at, "col_offset", 0) + 1)


def _check_depth(module: ast.Module) -> None:
    """Refuses what is nested so deep that walking it would be a danger; walks without recursion itself."""
    level: list[ast.AST] = [module]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise invalid(
        f"nested more than {MAX_DEPTH} deep", next((node for node in level if hasattr(node, "lineno")), module)
    )


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_text else body


def _first_value(sentence: ast.Assign) -> tuple[str, ast.expr]:
    target = sentence.targets[0]
    if len(sentence.targets) == 1 and isinstance(target, ast.Attribute) and is_name(target.value, "state"):
        return target.attr, sentence.value
    raise invalid("outside of the function only first values of the state can be given, as in state.x = 0.0", sentence)


def is_name(node: ast.AST, name: str) -> bool:
    """Whether a piece of the source is just this name."""
    return isinstance(node, ast.Name) and node.id == name


def _parameters(function: ast.FunctionDef) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, bool | int | float]]:
    arguments = function.args
    if arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg:
        raise invalid("parameters are plain names", function)
    if function.decorator_list:
        raise invalid("a program has no decorators", function.decorator_list[0])
    names = [argument.arg for argument in arguments.args]
    own = tuple(name for name in names if name not in STEP_INPUTS)
    if len(own) > MAX_PARAMETERS:
        raise invalid(f"{len(own)} parameters; {MAX_PARAMETERS} are allowed", function)
    for argument in arguments.args:
        if argument.arg in CONSTANTS or argument.arg in ("state", "probe"):
            raise invalid(f"`{argument.arg}` is always there and cannot be a parameter", argument)
    first_default = len(names) - len(arguments.defaults)
    defaults = {}
    for name, value in zip(names[first_default:], arguments.defaults, strict=True):
        if name in STEP_INPUTS:
            raise invalid(f"`{name}` comes from the step and has no default", value)
        defaults[name] = _literal(value)
    return tuple(name for name in names if name in STEP_INPUTS), own, defaults


def _literal(node: ast.expr) -> bool | int | float:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return node.value if sign == 1 else -node.value
    raise invalid("a default is a number, True or False", node)
