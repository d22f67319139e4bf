"""From a parsed program to a typed graph: names resolved, loops unrolled, every operand checked."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from functools import lru_cache

from engine.programs.graph import Constant, Graph, Node
from engine.programs.operations import FUNCTIONS, MAX_TOP, OPERATORS, Operation
from engine.programs.purposes import ADAPTER, PROPOSE, PURPOSES
from engine.programs.syntax import CONSTANTS, Parsed, invalid, is_name, parse
from engine.programs.types import BOOL, FLOAT, HISTORY, INT, VOCAB, Kind, Mismatch, Type

MAX_NODES = 4096
"""Values of one program, loops unrolled."""
MAX_ROUNDS = 2048
"""Rounds of all loops together."""
MAX_SHIFT = 1024
"""Places that `shift` goes back."""
MAX_LANES = 64
"""Contexts, or rows of a pass, that one program reads."""
MAX_GUESSES = 64
"""Tokens that one program guesses at a time."""
MAX_STATES = 16
MAX_PROBES = 16

WEIGHTS = Type(Kind.FLOAT, VOCAB)
"""Of what a guess was drawn from."""

_ANY_INPUTS = frozenset(name for one in PURPOSES.values() for name in one.inputs)
_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
_DRAWS = frozenset({"uniform", "gumbel", "gumbel_argmax", "categorical"})


@lru_cache(maxsize=256)
def lower(source: str, parameters: tuple[tuple[str, Type], ...], inputs: tuple[tuple[str, Type], ...] = ()) -> Graph:
    """Checks a program for given types of its own parameters.

    Args:
        source: The program.
        parameters: Name and type of each.
        inputs: The same of inputs whose types are not always the same.

    Raises:
        ProgramInvalid: With line and column of what is wrong.
    """
    return _Lowering(parse(source), dict(parameters), dict(inputs)).run()


class _Lowering:
    """One walk over a program."""

    def __init__(self, parsed: Parsed, parameters: dict[str, Type], inputs: dict[str, Type]) -> None:
        self._parsed = parsed
        self._given = inputs
        self._parameters = parameters
        self._nodes: list[Node] = []
        self._numbers: dict[Node, int] = {}
        self._names: dict[str, int] = {}
        self._pairs: dict[str, int] = {}
        self._states: dict[str, tuple[Type, int]] = {}
        self._updates: dict[str, int] = {}
        self._probes: dict[str, int] = {}
        self._inputs: set[str] = set()
        self._num_lanes = 0
        self._num_draws = 0
        self._num_rounds = 0
        self._at: ast.AST = ast.Module(body=[], type_ignores=[])

    def run(self) -> Graph:
        for name in self._parsed.parameters:
            self._names[name] = self._add("parameter", (), (name,), self._parameters[name])
        self._first_values()
        for name in self._parsed.inputs:
            if name != "lanes":
                self._names[name] = self._input(name)
        body = self._parsed.body
        if not body or not isinstance(body[-1], ast.Return):
            what = self._parsed.purpose.returns
            raise invalid(f"the function ends with a return of {what}", body[-1] if body else self._at)
        for sentence in body[:-1]:
            self._sentence(sentence)
        if self._parsed.function == PROPOSE:
            guesses, weights = self._guesses(body[-1])
            token = guesses[0]
        else:
            token, guesses, weights = self._returned(body[-1]), (), ()
        return Graph(
            nodes=tuple(self._nodes),
            parameters=self._parameters,
            inputs=frozenset(self._inputs),
            num_lanes=self._num_lanes,
            states=self._states,
            token=token,
            guesses=guesses,
            weights=weights,
            updates=self._updates,
            probes=self._probes,
        )

    # -- sentences ------------------------------------------------------------------------------------------------

    def _first_values(self) -> None:
        if len(self._parsed.state) > MAX_STATES:
            raise invalid(f"{len(self._parsed.state)} values of state; {MAX_STATES} are allowed", self._at)
        for name, expression in self._parsed.state.items():
            node = self._expression(expression)
            if self._num_draws:
                raise invalid("a first value cannot be drawn", expression)
            kind = self._type(node)
            self._states[name] = (kind, node)
        for name, (kind, _) in self._states.items():
            self._updates[name] = self._add("state", (), (name,), kind)

    def _sentence(self, sentence: ast.stmt) -> None:
        self._at = sentence
        match sentence:
            case ast.Assign(targets=[target], value=value):
                self._assign(target, value)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.AugAssign(target=target, op=op, value=value):
                self._store(target, self._binary(op, self._load_target(target), self._expression(value), sentence))
            case ast.For():
                self._loop(sentence)
            case ast.Return():
                raise invalid("only the last sentence returns", sentence)
            case ast.Pass():
                pass
            case ast.If() | ast.While() | ast.With() | ast.Try() | ast.Match():
                raise invalid("programs have no branches: where(condition, a, b) chooses between values", sentence)
            case _:
                raise invalid("programs have assignments, loops over range(n), and a return", sentence)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple):
            values, places = self._top(value)
            if len(target.elts) != 2:
                raise invalid("topk gives two values: values, indices = topk(x, k)", target)
            self._store(target.elts[0], values)
            self._store(target.elts[1], places)
            return
        self._store(target, self._expression(value))

    def _load_target(self, target: ast.expr) -> int:
        if isinstance(target, ast.Name | ast.Attribute):
            return self._expression(target)
        raise invalid("assign to a name, to state.x or to probe.x", target)

    def _store(self, target: ast.expr, node: int) -> None:
        match target:
            case ast.Name(id=name):
                if name in CONSTANTS or name in ("state", "probe"):
                    raise invalid(f"`{name}` cannot be assigned", target)
                self._names[name] = node
            case ast.Attribute(value=base, attr=name) if is_name(base, "state"):
                self._update(name, node, target)
            case ast.Attribute(value=base, attr=name) if is_name(base, "probe"):
                if not self._parsed.purpose.takes_notes:
                    raise invalid(f"`{self._parsed.function}` notes nothing down", target)
                if len(self._probes) >= MAX_PROBES and name not in self._probes:
                    raise invalid(f"more than {MAX_PROBES} probes", target)
                if self._type(node).kind is Kind.KEY or self._type(node).axis == HISTORY:
                    raise invalid(f"a probe cannot be {self._type(node)}", target)
                self._probes[name] = node
            case _:
                raise invalid("assign to a name, to state.x or to probe.x", target)

    def _update(self, name: str, node: int, at: ast.AST) -> None:
        if name not in self._states:
            raise invalid(f"state.{name} has no first value; give one above the function: state.{name} = 0.0", at)
        wanted, found = self._states[name][0], self._type(node)
        if wanted.axis is not None and found.axis is None:
            raise invalid(f"state.{name} is {wanted}; this is {found}", at)
        if found.axis not in (None, wanted.axis) or found.kind > wanted.kind:
            raise invalid(f"state.{name} is {wanted}; this is {found}", at)
        self._updates[name] = node if found == wanted else self._add(wanted.kind.name.lower(), (node,), (), wanted)

    def _loop(self, loop: ast.For) -> None:
        if loop.orelse or not isinstance(loop.target, ast.Name):
            raise invalid("a loop is `for name in range(n):`", loop)
        match loop.iter:
            case ast.Call(func=func, args=[_, *_] as bounds, keywords=[]) if (
                is_name(func, "range") and len(bounds) <= 3
            ):
                limits = [self._fixed(bound) for bound in bounds]
            case _:
                raise invalid("a loop runs over range(n) with a number that is fixed in the source", loop.iter)
        if len(limits) == 3 and limits[2] == 0:
            raise invalid("the step of a range cannot be 0", loop.iter)
        for value in range(*limits):
            self._num_rounds += 1
            if self._num_rounds > MAX_ROUNDS:
                raise invalid(f"more than {MAX_ROUNDS} rounds of loops", loop)
            self._names[loop.target.id] = self._constant(value, loop)
            for sentence in loop.body:
                self._sentence(sentence)

    def _returned(self, sentence: ast.Return) -> int:
        purpose = self._parsed.purpose
        if sentence.value is None:
            raise invalid(f"the function returns {purpose.returns}", sentence)
        node = self._expression(sentence.value)
        results = (self._given["y"],) if self._parsed.function == ADAPTER else purpose.results
        if self._type(node) not in results:
            wanted = f"{purpose.returns}, {' or '.join(map(str, results))}"
            raise invalid(f"the function returns {wanted}; this is {self._type(node)}", sentence.value)
        return node

    def _guesses(self, sentence: ast.Return) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Nodes of the tokens guessed, and of what each was drawn from where it says so."""
        match sentence.value:
            case None:
                raise invalid("the function returns the tokens that it guesses", sentence)
            case ast.Tuple(elts=[_, *_] as elements):
                if len(elements) == 2 and self._is_weight(elements[1]):
                    elements = [sentence.value]
            case alone:
                node = self._expression(alone)
                kind = self._type(node)
                if kind != INT and not (kind.kind is Kind.INT and isinstance(kind.axis, int)):
                    raise invalid(f"the function returns tokens, i64 each; this is {kind}", alone)
                self._check_guesses(kind.axis if isinstance(kind.axis, int) else 1, sentence)
                return (node,), ()
        self._check_guesses(len(elements), sentence)
        tokens, weights = [], []
        for element in elements:
            token, weight = element, None
            if isinstance(element, ast.Tuple):
                if len(element.elts) != 2:
                    raise invalid("a guess is a token, or a token and what it was drawn from", element)
                token, weight = element.elts
            tokens.append(self._typed(token, INT, "a guess"))
            if weight is not None:
                weights.append(self._typed(weight, WEIGHTS, "what a guess was drawn from"))
        if len(weights) not in (0, len(tokens)):
            raise invalid("either all guesses say what they were drawn from, or none", sentence)
        return tuple(tokens), tuple(weights)

    def _is_weight(self, expression: ast.expr) -> bool:
        """Whether a pair that ends in it is one guess with what it was drawn from, and no two guesses."""
        return not isinstance(expression, ast.Tuple) and self._type(self._expression(expression)) == WEIGHTS

    def _typed(self, expression: ast.expr, kind: Type, what: str) -> int:
        node = self._expression(expression)
        if self._type(node) != kind:
            raise invalid(f"{what} is {kind}; this is {self._type(node)}", expression)
        return node

    def _check_guesses(self, count: int, sentence: ast.Return) -> None:
        if count > MAX_GUESSES:
            raise invalid(f"{count} tokens are guessed at once; {MAX_GUESSES} are allowed", sentence)

    # -- expressions ----------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr) -> int:
        self._at = node
        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                return self._constant(value, node)
            case ast.Name(id=name):
                return self._name(name, node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._operator("neg", [self._expression(operand)], node)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._expression(operand)
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
                return self._operator("not", [self._expression(operand)], node)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._expression(left), self._expression(right), node)
            case ast.BoolOp(op=op, values=values):
                return self._joined("and" if isinstance(op, ast.And) else "or", values, node)
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compared(left, ops, others, node)
            case ast.Call():
                return self._call(node)
            case ast.Subscript():
                return self._subscript(node)
            case _:
                raise invalid("programs have numbers, names, operators and calls of the functions listed", node)

    def _name(self, name: str, at: ast.AST) -> int:
        if name in self._names:
            return self._names[name]
        if name in CONSTANTS and self._parsed.purpose.knows_vocab:
            return self._add(name, (), (), Type(Kind.INT, VOCAB) if name == "vocab" else INT)
        if name in self._parsed.purpose.inputs:
            raise invalid(f"`{name}` must be a parameter of the function to be read", at)
        if name in _ANY_INPUTS or name in CONSTANTS:
            raise invalid(f"`{self._parsed.function}` does not know `{name}`", at)
        raise invalid(f"no name `{name}` is known here", at)

    def _attribute(self, node: ast.Attribute) -> int:
        match node:
            case ast.Attribute(value=base, attr=name) if is_name(base, "state"):
                if name not in self._updates:
                    raise invalid(f"state.{name} has no first value", node)
                return self._updates[name]
            case ast.Attribute(value=ast.Subscript(value=base, slice=place), attr="logits") if is_name(base, "lanes"):
                return self._lane(self._fixed(place), node)
        raise invalid("values have no attributes; there are state.x and lanes[i].logits", node)

    def _lane(self, index: int, at: ast.AST) -> int:
        if "lanes" not in self._parsed.purpose.inputs:
            raise invalid(f"`{self._parsed.function}` does not know `lanes`", at)
        if "lanes" not in self._parsed.inputs:
            raise invalid("`lanes` must be a parameter of the function to be read", at)
        if not 0 <= index < MAX_LANES:
            raise invalid(f"lanes are numbered from 0 to {MAX_LANES - 1}", at)
        self._inputs.add("lanes")
        self._num_lanes = max(self._num_lanes, index + 1)
        return self._add("lane", (), (index,), Type(Kind.FLOAT, VOCAB))

    def _subscript(self, node: ast.Subscript) -> int:
        if not is_name(node.value, "history"):
            raise invalid("only the history can be indexed, from its end: history[-1]; else use gather(x, i)", node)
        place = self._fixed(node.slice)
        if place >= 0:
            raise invalid("the history is indexed from its end: history[-1] is the newest token", node)
        history = self._name("history", node)
        return self._add("recent", (history,), (-place,), INT)

    def _binary(self, op: ast.operator, left: int, right: int, at: ast.AST) -> int:
        name = _BINARY.get(type(op))
        if name == "matmul" and self._parsed.function != ADAPTER:
            name = None
        if name is None:
            raise invalid("programs do not have this operator", at)
        return self._operator(name, [left, right], at)

    def _joined(self, name: str, values: list[ast.expr], at: ast.AST) -> int:
        nodes = [self._expression(value) for value in values]
        for node, value in zip(nodes, values, strict=True):
            if self._type(node).kind is not Kind.BOOL:
                raise invalid(f"`{name}` joins bool values, not {self._type(node)}", value)
        joined = nodes[0]
        for node in nodes[1:]:
            joined = self._operator(name, [joined, node], at)
        return joined

    def _compared(self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr], at: ast.AST) -> int:
        nodes = [self._expression(value) for value in (left, *others)]
        result: int | None = None
        for op, first, second in zip(ops, nodes, nodes[1:], strict=False):
            name = _COMPARISONS.get(type(op))
            if name is None:
                raise invalid("programs do not have this comparison", at)
            one = self._operator(name, [first, second], at)
            result = one if result is None else self._operator("and", [result, one], at)
        assert result is not None
        return result

    def _call(self, node: ast.Call) -> int:
        if not isinstance(node.func, ast.Name):
            raise invalid("only the functions listed can be called", node)
        name = node.func.id
        if name == "topk":
            raise invalid("topk gives two values: values, indices = topk(x, k)", node)
        operation = FUNCTIONS.get(name)
        if operation is None:
            raise invalid(f"there is no function `{name}`", node)
        if node.keywords or not operation.min_args <= len(node.args) <= operation.max_args:
            raise invalid(f"it is called as {operation.signature}", node)
        if name == "shift":
            return self._shift(operation, node)
        args = [self._expression(argument) for argument in node.args]
        attributes: tuple[Constant | str, ...] = ()
        if name in _DRAWS:
            # Each call in the source draws its own numbers; the first draws those of the plain sampler.
            attributes = (self._num_draws,)
            self._num_draws += 1
        return self._checked(name, operation, args, node, attributes)

    def _shift(self, operation: Operation, node: ast.Call) -> int:
        places = self._fixed(node.args[1])
        if not 0 <= places <= MAX_SHIFT:
            raise invalid(f"shift goes back between 0 and {MAX_SHIFT} places, not {places}", node)
        return self._checked("shift", operation, [self._expression(node.args[0])], node, (places,))

    def _top(self, node: ast.expr) -> tuple[int, int]:
        match node:
            case ast.Call(func=func, args=[values, count], keywords=[]) if is_name(func, "topk"):
                source, limit = self._expression(values), self._fixed(count)
            case _:
                raise invalid("only topk gives two values: values, indices = topk(x, k)", node)
        if not 1 <= limit <= MAX_TOP:
            raise invalid(f"topk gives between 1 and {MAX_TOP} values, not {limit}", node)
        found = self._type(source)
        if found.axis != VOCAB:
            raise invalid(f"topk(x, k) takes values of the vocabulary, not {found}", node)
        order = self._add("top", (source,), (limit,), Type(Kind.INT, limit))
        return self._add("gather", (source, order), (), Type(found.kind, limit)), order

    def _operator(self, name: str, args: list[int], at: ast.AST) -> int:
        return self._checked(name, OPERATORS[name], args, at)

    def _checked(
        self, op: str, operation: Operation, args: list[int], at: ast.AST, attributes: tuple[Constant | str, ...] = ()
    ) -> int:
        if op != "matmul" and any(self._nodes[arg].type.rows is not None for arg in args):
            raise invalid(f"{operation.signature}: a matrix can only be multiplied by, as in x @ a", at)
        try:
            found = operation.rule(*[self._type(arg) for arg in args])
        except Mismatch as error:
            operands = ", ".join(str(self._type(arg)) for arg in args)
            raise invalid(f"{operation.signature}: {error} (given {operands})", at) from None
        if found.axis == VOCAB and not self._parsed.purpose.knows_vocab:
            raise invalid(f"{operation.signature}: `{self._parsed.function}` knows no vocabulary", at)
        self._at = at
        return self._add(op, tuple(args), attributes, found)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _constant(self, value: bool | int | float, at: ast.AST) -> int:
        if isinstance(value, bool):
            return self._add("constant", (), (value,), BOOL)
        if isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise invalid(f"{value} does not fit 64 bits", at)
            return self._add("constant", (), (value,), INT)
        return self._add("constant", (), (value,), FLOAT)

    def _fixed(self, node: ast.expr) -> int:
        """A whole number that the source alone decides."""
        found = self._nodes[self._expression(node)]
        value = self._folded(found)
        if value is None:
            raise invalid("this number must be fixed in the source", node)
        return value

    def _folded(self, node: Node) -> int | None:
        if node.op == "constant" and node.type == INT:
            return int(node.attributes[0])
        if node.type != INT or node.op not in ("neg", "add", "sub", "mul"):
            return None
        values = [self._folded(self._nodes[arg]) for arg in node.args]
        if any(value is None for value in values):
            return None
        numbers = [value for value in values if value is not None]
        if node.op == "neg":
            return -numbers[0]
        if node.op == "add":
            return numbers[0] + numbers[1]
        return numbers[0] - numbers[1] if node.op == "sub" else math.prod(numbers)

    def _input(self, name: str) -> int:
        kind = self._given.get(name, self._parsed.purpose.inputs[name])
        assert kind is not None
        self._inputs.add(name)
        return self._add("input", (), (name,), kind)

    def _type(self, node: int) -> Type:
        return self._nodes[node].type

    def _add(self, op: str, args: tuple[int, ...], attributes: tuple[Constant | str, ...], kind: Type) -> int:
        """Adds a value, or finds the same one."""
        node = Node(op, args, attributes, kind)
        # 0.0 == -0.0 in a dictionary's eyes; True == 1 == 1.0 too, but their types tell them apart.
        mark = Node(op, args, tuple(map(repr, attributes)), kind)
        if mark in self._numbers:
            return self._numbers[mark]
        if len(self._nodes) >= MAX_NODES:
            raise invalid(f"more than {MAX_NODES} values, loops unrolled", self._at)
        self._nodes.append(node)
        self._numbers[mark] = len(self._nodes) - 1
        return len(self._nodes) - 1
