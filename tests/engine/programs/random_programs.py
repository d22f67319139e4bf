"""Random device programs, typed as they are made.

`EXACT` ones use operations that every backend computes to the same bits on small dyadic numbers, so that what is put
in order or counted is the same too; `SMOOTH` ones use the rest, and their results are compared with a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

BOOL, INT, FLOAT = "bool", "int", "float"
ONE, VOCAB, HISTORY = "one", "vocab", "history"

Draw = st.DrawFn


@dataclass
class _Names:
    """Names that have been assigned, by type."""

    known: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    count: int = 0

    def add(self, kind: str, axis: str) -> str:
        self.count += 1
        name = f"x{self.count}"
        self.known.setdefault((kind, axis), []).append(name)
        return name


def _leaf(draw: Draw, kind: str, axis: str, names: _Names) -> str:
    options = list(names.known.get((kind, axis), ()))
    match kind, axis:
        case "float", "one":
            options += ["scale", str(draw(st.sampled_from([0.0, 1.0, -2.0, 0.5, 3.25]))), "state.s"]
        case "float", "vocab":
            options += ["logits", "logits", "bias", "state.v", "zeros(vocab)", "lanes[1].logits"]
        case "int", "one":
            options += [str(draw(st.integers(-4, 9))), "prev", "step", "history[-1]", "history[-3]", "vocab_size"]
        case "int", "vocab":
            options += ["vocab", "counts"]
        case "int", "history":
            options += ["history", "shift(history, 2)", "shift(history, 9)", "places"]
        case "bool", "one":
            options += ["True", "False"]
        case "bool", "vocab":
            options += ["one_hot(prev)", "(logits > 0.5)"]
        case "bool", "history":
            options += ["(history == prev)", "shift(history == prev, 1)"]
        case _:
            options += ["gather(logits, history)", "shift(gather(logits, history), 3)"]
    return draw(st.sampled_from(options))


def _exact(draw: Draw, kind: str, axis: str, depth: int, names: _Names) -> str:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return _leaf(draw, kind, axis, names)

    def sub(kind: str = kind, axis: str = axis) -> str:
        narrower = ONE if axis != ONE and draw(st.integers(0, 3)) == 0 else axis
        return _exact(draw, kind, narrower, depth - 1, names)

    def full(kind: str = kind, axis: str = axis) -> str:
        return _exact(draw, kind, axis, depth - 1, names)

    numeric = draw(st.sampled_from([INT, FLOAT]))
    choices = [lambda: f"where({sub(BOOL)}, {full()}, {sub()})"]
    if kind == BOOL:
        op = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
        choices += [lambda: f"({full(numeric)} {op} {sub(numeric)})", lambda: f"(not {full()})"]
        logic = draw(st.sampled_from(["&", "|", "^", "and", "or"]))
        choices += [lambda: f"({full()} {logic} {sub()})"]
    else:
        op = draw(st.sampled_from(["+", "-"]))
        choices += [
            lambda: f"({full()} {op} {sub()})",
            lambda: f"({full()} * {draw(st.sampled_from([-1, 0, 2]))})",
            lambda: f"abs({full()})",
            lambda: f"(-{full()})",
            lambda: f"clamp({full()}, {sub(kind, ONE)}, {sub(kind, ONE)})",
            lambda: f"max({full()}, {sub()})",
            lambda: f"min({full()}, {sub()})",
        ]
    if kind == INT:
        op = draw(st.sampled_from(["//", "%", "&", "|", "^"]))
        choices += [lambda: f"({full()} {op} {sub()})", lambda: f"int({full(FLOAT)})"]
        if axis == ONE:
            some = draw(st.sampled_from([VOCAB, HISTORY]))
            choices += [lambda: f"argmax({full(numeric, VOCAB)})", lambda: f"sum({full(BOOL, some)})"]
            choices += [lambda: f"sum({full(INT, some)})", lambda: f"max({full(INT, some)})"]
        if axis == VOCAB:
            choices += [lambda: f"rank({full(numeric)})", lambda: f"cumsum({full(BOOL)})", lambda: f"sort({full()})"]
    if kind == FLOAT:
        choices += [lambda: f"floor({full()})", lambda: f"float({full(INT)})"]
        if axis == ONE:
            some = draw(st.sampled_from([VOCAB, HISTORY]))
            choices += [lambda: f"max({full(FLOAT, some)})", lambda: f"min({full(FLOAT, some)})"]
        if axis == VOCAB:
            choices += [lambda: f"sort({full()})"]
    if axis == VOCAB and kind != BOOL:
        where = draw(st.sampled_from([ONE, HISTORY]))
        choices += [
            lambda: f"scatter({full()}, {full(INT, where)}, {sub(kind, ONE)})",
            lambda: f"scatter({full()}, {full(INT, VOCAB)}, {full(kind, VOCAB)})",
            lambda: f"scatter_max({full()}, {full(INT, where)}, {full(kind, where)})",
        ]
    if kind != BOOL:
        choices += [lambda: f"gather({full(kind, VOCAB)}, {full(INT, axis)})"]
    return draw(st.sampled_from(choices))()


def _smooth(draw: Draw, axis: str, depth: int) -> str:
    if depth == 0:
        return draw(st.sampled_from(["scale", "1.5"] if axis == ONE else ["logits", "bias", "lanes[1].logits"]))

    def sub(axis: str = axis) -> str:
        return _smooth(draw, axis, depth - 1)

    choices = [
        lambda: f"({sub()} {draw(st.sampled_from('+-*'))} {sub(ONE)})",
        lambda: f"exp(-abs({sub()}))",
        lambda: f"log(abs({sub()}) + 0.25)",
        lambda: f"sqrt(abs({sub()}))",
        lambda: f"({sub()} / (abs({sub(ONE)}) + 0.5))",
        lambda: f"(abs({sub()}) + 0.1) ** 0.75",
    ]
    if axis == ONE:
        choices += [lambda: f"entropy({sub(VOCAB)})", lambda: f"sum(softmax({sub(VOCAB)}) * {sub(VOCAB)})"]
        choices += [lambda: f"max({sub(VOCAB)})", lambda: "uniform(key)"]
    else:
        choices += [lambda: f"softmax({sub()})", lambda: f"log_softmax({sub()})", lambda: f"cumsum({sub()})"]
        choices += [lambda: "hash_uniform(prev, vocab)", lambda: "uniform(key, logits)", lambda: "gumbel(key)"]
    return draw(st.sampled_from(choices))()


_HEAD = """state.s = 1.5
state.v = zeros(vocab)

def sample(logits, lanes, key, prev, step, history, places, counts, scale, bias):
"""


@st.composite
def exact_programs(draw: Draw) -> str:
    """Programs whose every result is the same to the bit on all backends."""
    names = _Names()
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        kind, axis = draw(st.sampled_from([BOOL, INT, FLOAT])), draw(st.sampled_from([ONE, VOCAB, HISTORY]))
        # What should be a vector may come out single; the name is for what it is.
        text = _exact(draw, kind, axis, draw(st.integers(1, 3)), names)
        lines.append(f"    {names.add(kind, axis)} = {_widened(text, kind, axis)}")
    lines += [f"    probe.p{at} = {_exact(draw, INT, VOCAB, 2, names)}" for at in range(2)]
    lines.append(f"    state.s = {_exact(draw, FLOAT, ONE, 2, names)}")
    lines.append(f"    state.v = {_widened(_exact(draw, FLOAT, VOCAB, 2, names), FLOAT, VOCAB)}")
    lines.append(f"    return {_exact(draw, INT, ONE, 2, names)}")
    return _HEAD + "\n".join(lines) + "\n"


def _widened(text: str, kind: str, axis: str) -> str:
    """The same value, surely of its axis."""
    if axis == ONE:
        return text
    whole = "(vocab == vocab)" if axis == VOCAB else "(history == history)"
    return f"where({whole}, {text}, {text})"


@st.composite
def smooth_programs(draw: Draw) -> str:
    """Programs whose results are rounded differently from backend to backend."""
    lines = [f"    probe.a = {_smooth(draw, ONE, 3)}", f"    probe.b = {_smooth(draw, VOCAB, 3)}"]
    lines.append(f"    state.v = state.v * 0.5 + {_smooth(draw, VOCAB, 2)}")
    return _HEAD + "\n".join(lines) + "\n    return 1\n"
