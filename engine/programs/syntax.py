"""From source text to the one function it holds: which sentences of Python a device program may use.

A program is an optional docstring, first values of its state (`state.x = ...`), and one function of assignments, loops
of fixed bounds, and a `return` at the end: `sample(...)` draws a token, `propose(...)` guesses the next ones, and so on
(`engine.programs.purposes`). There are no branches, so that every request of a batch does the same work; `where`
chooses between values.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import lru_cache

from engine.programs.errors import ProgramInvalid
from engine.programs.purposes import PROPOSE, PURPOSES, SAMPLE, Purpose

MAX_SOURCE_BYTES = 16_384
MAX_PARAMETERS = 32
MAX_DEPTH = 64
"""How deep expressions may be nested."""

CONSTANTS = frozenset({"vocab", "vocab_size"})
"""Names that are always there where there is a vocabulary: every token id, and how many."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A program whose sentences are allowed; its types are not known yet.

    Attributes:
        digest: Of the source.
        function: Its name, one of `PURPOSES`.
        inputs: Which of its purpose's inputs the function asks for.
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

    @property
    def purpose(self) -> Purpose:
        """What the function is for."""
        return PURPOSES[self.function]


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
    if function is None or function.name not in PURPOSES:
        where = (1, 1) if function is None else (function.lineno, function.col_offset + 1)
        others = " or ".join(f"`{name}` ({one.meaning})" for name, one in PURPOSES.items() if name != SAMPLE)
        raise ProgramInvalid(f"a program defines a function named `{SAMPLE}`, or {others}", *where)
    if state and not PURPOSES[function.name].has_state:
        raise invalid(f"`{function.name}` is computed once: it has no state", next(iter(state.values())))
    inputs, parameters, defaults = _parameters(function)
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
    purpose = PURPOSES[function.name]
    names = [argument.arg for argument in arguments.args]
    unknown = {"logits", "lanes"}.intersection(names) if function.name == PROPOSE else ()
    if unknown:
        raise invalid(f"`{min(unknown)}` of a token are not there yet where it is guessed", function)
    own = tuple(name for name in names if name not in purpose.inputs)
    if len(own) > MAX_PARAMETERS:
        raise invalid(f"{len(own)} parameters; {MAX_PARAMETERS} are allowed", function)
    for argument in arguments.args:
        reserved = ("state", "probe", *(CONSTANTS if purpose.knows_vocab else ()))
        if argument.arg in reserved:
            raise invalid(f"`{argument.arg}` is always there and cannot be a parameter", argument)
    first_default = len(names) - len(arguments.defaults)
    defaults = {}
    for name, value in zip(names[first_default:], arguments.defaults, strict=True):
        if name in purpose.inputs:
            raise invalid(f"`{name}` comes from the step and has no default", value)
        defaults[name] = _literal(value)
    return tuple(name for name in names if name in purpose.inputs), own, defaults


def _literal(node: ast.expr) -> bool | int | float:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return node.value if sign == 1 else -node.value
    raise invalid("a default is a number, True or False", node)
