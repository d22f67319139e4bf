"""The closed list of what a device program can call, with the types of operands and results.

What each one computes is defined by `engine.programs.reference`:

- f32 arithmetic is IEEE's; sums over vectors are made in 64 bits and rounded once. i64 wraps around; `//` and `%` by 0
  give 0; `int` of a NaN is 0 and stays within 2**62 either way.
- Where numbers are put in order, the lower index comes first among equals and a NaN counts as -inf. max(x) and min(x)
  pass over NaNs.
- An index outside of what it indexes reads 0, writes nothing, and marks nothing. Of two writes to one place the later
  one stays. Before the beginning of the history, `shift` reads -1 of i64, 0.0 of f32 and False of bool values.
- The n-th call that draws, in order of the source, has its own key made of `key` and n; the first has `key` itself, so
  gumbel_argmax(logits / temperature, key) is what the plain sampler takes at that temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.programs.types import (
    FLOAT,
    HISTORY,
    INT,
    VOCAB,
    Kind,
    Mismatch,
    Type,
    common_axis,
    common_kind,
)

MAX_TOP = 1024
"""Most values that `topk` gives."""

Rule = Callable[..., Type]


@dataclass(frozen=True, slots=True)
class Operation:
    """How one operation is called.

    Attributes:
        signature: For messages and the documentation.
        meaning: One line for the documentation.
        min_args, max_args: How many operands it takes.
        rule: Types of the operands to the type of the result; raises `Mismatch`.
    """

    signature: str
    meaning: str
    min_args: int
    max_args: int
    rule: Rule


def _elementwise(*types: Type) -> Type:
    return Type(common_kind(*types), common_axis(*types))


def _number(*types: Type) -> Type:
    return Type(common_kind(*types, at_least=Kind.INT), common_axis(*types))


def _real(*types: Type) -> Type:
    return Type(common_kind(*types, at_least=Kind.FLOAT), common_axis(*types))


def _comparison(*types: Type) -> Type:
    common_kind(*types)
    return Type(Kind.BOOL, common_axis(*types))


def _product(left: Type, right: Type) -> Type:
    if left.rows is not None:
        raise Mismatch("a matrix stands on the right")
    if _settled(left).axis != (_settled(right).axis if right.rows is None else right.rows):
        raise Mismatch("as many numbers on the left as the right has rows")
    common_kind(left, right)
    return Type(Kind.FLOAT, None if right.rows is None else right.axis)


def _logic(*types: Type) -> Type:
    if any(one.kind > Kind.INT for one in types):
        raise Mismatch("takes bool or i64 values")
    return _elementwise(*types)


def _truth(*types: Type) -> Type:
    if any(one.kind is not Kind.BOOL for one in types):
        raise Mismatch("takes bool values; compare first, as in x != 0")
    return Type(Kind.BOOL, common_axis(*types))


def _whole(*types: Type) -> Type:
    if any(one.kind > Kind.INT for one in types):
        raise Mismatch("takes i64 values")
    return Type(Kind.INT, common_axis(*types))


def _where(condition: Type, yes: Type, no: Type) -> Type:
    if condition.kind is not Kind.BOOL:
        raise Mismatch(f"the condition must be bool, not {condition}")
    return Type(common_kind(yes, no), common_axis(condition, yes, no))


def _vector(value: Type) -> Type:
    if value.axis is None or value.kind is Kind.KEY:
        raise Mismatch(f"takes a vector, not {value}")
    return value


def _settled(value: Type) -> Type:
    """A vector whose places mean something to the operation: not the history, whose length changes."""
    if _vector(value).axis == HISTORY:
        raise Mismatch("does not take values of the history, whose length changes from step to step")
    return value


def _sum(value: Type) -> Type:
    return Type(max(Kind.INT, _vector(value).kind))


def _extreme(*types: Type) -> Type:
    return _elementwise(*types) if len(types) > 1 else Type(_vector(types[0]).kind)


def _argmax(value: Type) -> Type:
    _settled(value)
    return INT


def _ordered(value: Type) -> Type:
    return _settled(value)


def _rank(value: Type) -> Type:
    return _settled(value).of(Kind.INT)


def _distribution(value: Type) -> Type:
    return _settled(value).of(Kind.FLOAT)


def _entropy(value: Type) -> Type:
    _settled(value)
    return FLOAT


def _cumsum(value: Type) -> Type:
    return _settled(value).of(max(Kind.INT, value.kind))


def _index(index: Type) -> Type:
    if index.kind is not Kind.INT:
        raise Mismatch(f"an index must be i64, not {index}")
    return index


def _gather(values: Type, index: Type) -> Type:
    return Type(_settled(values).kind, _index(index).axis)


def _scatter(values: Type, index: Type, new: Type) -> Type:
    _index(index)
    if new.axis is not None and (index.axis == HISTORY or new.axis != index.axis):
        raise Mismatch(f"cannot write {new} to places {index}; a single value goes to any places")
    return Type(common_kind(_settled(values), new), values.axis)


def _scatter_max(values: Type, index: Type, new: Type) -> Type:
    _index(index)
    if new.axis is not None and new.axis != index.axis:
        raise Mismatch(f"cannot write {new} to places {index}")
    return Type(common_kind(_settled(values), new), values.axis)


def _one_hot(index: Type) -> Type:
    if _index(index).axis is not None:
        raise Mismatch(f"takes a single index, not {index}")
    return Type(Kind.BOOL, VOCAB)


def _key(value: Type) -> None:
    if value.kind is not Kind.KEY:
        raise Mismatch(f"draws with a key, not with {value}")


def _hash_uniform(name: Type, index: Type) -> Type:
    if _index(name).axis is not None:
        raise Mismatch(f"the first value must be single, not {name}")
    return Type(Kind.FLOAT, _index(index).axis)


def _uniform(key: Type, like: Type | None = None) -> Type:
    _key(key)
    return FLOAT if like is None else _settled(like).of(Kind.FLOAT)


def _gumbel(key: Type) -> Type:
    _key(key)
    return Type(Kind.FLOAT, VOCAB)


def _draw(weights: Type, key: Type) -> Type:
    _key(key)
    if _settled(weights).kind is Kind.BOOL:
        raise Mismatch(f"draws by numbers, not by {weights}")
    return INT


def _float(value: Type) -> Type:
    common_kind(value)
    return value.of(Kind.FLOAT)


def _int(value: Type) -> Type:
    common_kind(value)
    return value.of(Kind.INT)


def _shift(values: Type) -> Type:
    if values.axis != HISTORY:
        raise Mismatch(f"takes values of the history, not {values}")
    return values


def _zeros(like: Type) -> Type:
    return _settled(like).of(Kind.FLOAT)


FUNCTIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "where": Operation("where(condition, a, b)", "a where the condition holds, else b", 3, 3, _where),
        "exp": Operation("exp(x)", "e to the power of x", 1, 1, _real),
        "log": Operation("log(x)", "natural logarithm", 1, 1, _real),
        "sqrt": Operation("sqrt(x)", "square root", 1, 1, _real),
        "abs": Operation("abs(x)", "absolute value", 1, 1, _number),
        "floor": Operation("floor(x)", "greatest whole number not above x", 1, 1, _real),
        "clamp": Operation("clamp(x, low, high)", "x, not below low nor above high", 3, 3, _number),
        "float": Operation("float(x)", "as f32", 1, 1, _float),
        "int": Operation("int(x)", "as i64, cut towards zero", 1, 1, _int),
        "softmax": Operation("softmax(x)", "exp(x) over its sum", 1, 1, _distribution),
        "log_softmax": Operation("log_softmax(x)", "logarithm of softmax(x)", 1, 1, _distribution),
        "entropy": Operation("entropy(x)", "Shannon entropy of softmax(x), in nats", 1, 1, _entropy),
        "sum": Operation("sum(x)", "sum over a vector", 1, 1, _sum),
        "max": Operation("max(x) or max(a, b)", "greatest of a vector, or of each pair", 1, 2, _extreme),
        "min": Operation("min(x) or min(a, b)", "least of a vector, or of each pair", 1, 2, _extreme),
        "argmax": Operation("argmax(x)", "index of the greatest", 1, 1, _argmax),
        "sort": Operation("sort(x)", "from greatest to least", 1, 1, _ordered),
        "rank": Operation("rank(x)", "how many come before each value in sort(x)", 1, 1, _rank),
        "cumsum": Operation("cumsum(x)", "sums up to each place, itself included", 1, 1, _cumsum),
        "gather": Operation("gather(x, i)", "x at the places i", 2, 2, _gather),
        "scatter": Operation("scatter(x, i, y)", "x with y written to the places i", 3, 3, _scatter),
        "scatter_max": Operation(
            "scatter_max(x, i, y)", "x, where each of the places i is no less than its y", 3, 3, _scatter_max
        ),
        "one_hot": Operation("one_hot(i)", "for each token, whether it is i", 1, 1, _one_hot),
        "shift": Operation("shift(x, n)", "of values of the history those n places earlier, n fixed", 2, 2, _shift),
        "zeros": Operation("zeros(x)", "zeros of the shape of x", 1, 1, _zeros),
        "hash_uniform": Operation(
            "hash_uniform(a, i)", "a number in (0, 1) that depends on a and i alone", 2, 2, _hash_uniform
        ),
        "uniform": Operation(
            "uniform(key) or uniform(key, x)", "uniform in (0, 1), one or as many as x", 1, 2, _uniform
        ),
        "gumbel": Operation("gumbel(key)", "standard Gumbel noise for each token", 1, 1, _gumbel),
        "gumbel_argmax": Operation(
            "gumbel_argmax(x, key)", "a draw from softmax(x), by argmax(x + gumbel(key))", 2, 2, _draw
        ),
        "categorical": Operation("categorical(p, key)", "a draw with probabilities in proportion to p", 2, 2, _draw),
    }
)
"""Functions by name; `topk(x, k)`, which gives two values, is spelled out in `engine.programs.lowering`."""

OPERATORS: Mapping[str, Operation] = MappingProxyType(
    {
        "add": Operation("a + b", "sum", 2, 2, _number),
        "sub": Operation("a - b", "difference", 2, 2, _number),
        "mul": Operation("a * b", "product", 2, 2, _number),
        "div": Operation("a / b", "quotient, f32", 2, 2, _real),
        "floordiv": Operation("a // b", "whole quotient, rounded down; 0 where b is 0", 2, 2, _whole),
        "mod": Operation("a % b", "what `//` leaves, with the sign of b; 0 where b is 0", 2, 2, _whole),
        "pow": Operation("a ** b", "power, f32", 2, 2, _real),
        "matmul": Operation("x @ a", "of `adapter`: a vector times a matrix, or two vectors; f32", 2, 2, _product),
        "neg": Operation("-a", "opposite", 1, 1, _number),
        "lt": Operation("a < b", "less", 2, 2, _comparison),
        "le": Operation("a <= b", "not more", 2, 2, _comparison),
        "gt": Operation("a > b", "more", 2, 2, _comparison),
        "ge": Operation("a >= b", "not less", 2, 2, _comparison),
        "eq": Operation("a == b", "equal", 2, 2, _comparison),
        "ne": Operation("a != b", "different", 2, 2, _comparison),
        "and": Operation("a & b", "both; of i64 the bits", 2, 2, _logic),
        "or": Operation("a | b", "either; of i64 the bits", 2, 2, _logic),
        "xor": Operation("a ^ b", "one of them; of i64 the bits", 2, 2, _logic),
        "not": Operation("~a or not a", "the contrary of a bool", 1, 1, _truth),
    }
)
"""Operators by the name of their node."""
