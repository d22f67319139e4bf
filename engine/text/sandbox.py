"""Jinja for chat templates: sandboxed, bounded, with the few helpers that templates of models expect."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import Environment, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from engine.text.errors import TemplateError

Clock = Callable[[], datetime]
_MAX_PRODUCT = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How far rendering may go.

    Attributes:
        max_chars: Characters of output.
        max_s: Seconds; looked at in every round of a loop.
    """

    max_chars: int = 64_000_000
    max_s: float = 10.0


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - the type is Jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _LoopWatch(Extension):
    """Looks at the clock in every round of every loop, so that silent loops end too."""

    identifier = "loop_watch"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._deadline = threading.local()

    def begin(self, max_s: float) -> None:
        """Starts a run in this thread."""
        self._deadline.at = time.monotonic() + max_s
        self._deadline.max_s = max_s

    def tick(self) -> None:
        """Raises `TemplateError` if the run has gone on too long."""
        if time.monotonic() > self._deadline.at:
            raise TemplateError(f"the chat template ran longer than {self._deadline.max_s} seconds")

    def insert(self, template: nodes.Template) -> None:
        """Puts a tick into the loops of a parsed template."""
        for loop in template.find_all(nodes.For):
            tick = nodes.ExprStmt(self.call_method("tick", lineno=loop.lineno), lineno=loop.lineno)
            loop.body.insert(0, tick)


class _Namespace(Namespace):
    """Jinja's namespace, without names that begin with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace takes no name that begins with an underscore: {name!r}")
        super().__setitem__(name, value)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs templates; see `Limits` for what ends a run."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, now: Clock, limits: Limits) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self._loop_watch = _LoopWatch(self)
        self.extensions[_LoopWatch.identifier] = self._loop_watch
        self._limits = limits
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: now().strftime(form)
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _make_dict

    def compile_text(self, source: str) -> jinja2.Template:
        """Compiles a template."""
        parsed = self.parse(source)
        self._loop_watch.insert(parsed)
        return jinja2.Template.from_code(self, self.compile(parsed), self.make_globals(None))

    def run(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """Renders a template.

        Raises:
            TemplateError: It raised, failed or went too far.
        """
        self._loop_watch.begin(self._limits.max_s)
        parts: list[str] = []
        num_chars = 0
        try:
            for part in template.generate(variables):
                parts.append(part)
                num_chars += len(part)
                if num_chars > self._limits.max_chars:
                    raise TemplateError(f"the chat template wrote more than {self._limits.max_chars} characters")
        except TemplateError:
            raise
        except jinja2.TemplateError as error:
            raise TemplateError(error.message or type(error).__name__) from error
        except Exception as error:  # whatever the template's own expressions raise: TypeError, KeyError, overflow...
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error
        return "".join(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluates `*` and `**`, unless the result would be huge."""
        if _product_size(operator, left, right) > _MAX_PRODUCT:
            raise SecurityError(f"a chat template asked for a value too large to compute ({operator})")
        return super().call_binop(context, operator, left, right)


def _product_size(operator: str, left: Any, right: Any) -> int:
    """Characters, items or bits of a product, roughly; 0 where it cannot be large."""
    if operator == "**":
        return left.bit_length() * right if isinstance(left, int) and isinstance(right, int) else 0
    for many, times in ((left, right), (right, left)):
        if isinstance(many, str | list | tuple) and isinstance(times, int):
            return len(many) * times
    return 0


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which models never saw.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
