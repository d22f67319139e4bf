"""Mask rules: all rows of a lane together against the meaning of one, and what some rules mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.programs import masks
from engine.programs.binding import BoundProgram, bind_mask
from engine.programs.errors import ProgramInvalid, ProgramMisused
from engine.programs.masks import MaskLane, seen_by_rows
from engine.programs.reference import result

HEAD = "def mask(slot, history, positions, row, own, start, position, lane, parent, weights, flags, reach, share):\n"
PARAMETERS: dict[str, Any] = {
    "parent": [-1, 0, 0, 1],
    "weights": [0.5, -1.25, 2.0],
    "flags": [True, False, True],
    "reach": 3,
    "share": 0.75,
}
Draw = st.DrawFn


def leaf(draw: Draw, kind: str, wide: bool) -> str:
    match kind, wide:
        case "int", False:
            return draw(st.sampled_from(["row", "own", "start", "position", "lane", "reach", "2", "-1"]))
        case "int", True:
            return draw(st.sampled_from(["slot", "history", "positions", "shift(history, 2)"]))
        case "float", False:
            return draw(st.sampled_from(["share", "0.5", "-2.0", "float(row)"]))
        case "float", True:
            return draw(st.sampled_from(["float(slot)", "gather(weights, slot)", "gather(weights + row, slot)"]))
        case _, False:
            return draw(st.sampled_from(["True", "False", "(row == 1)"]))
    return draw(st.sampled_from(["(slot < start)", "(history == 3)", "shift(slot == own, 1)", "gather(flags, slot)"]))


def expression(draw: Draw, kind: str, wide: bool, depth: int) -> str:
    if depth == 0:
        return leaf(draw, kind, wide)

    def sub(kind: str = kind, wide: bool = wide) -> str:
        return expression(draw, kind, wide and bool(draw(st.integers(0, 3))), depth - 1)

    def full(kind: str = kind) -> str:
        return expression(draw, kind, wide, depth - 1)

    number = draw(st.sampled_from(["int", "float"]))
    choices = [lambda: f"where({sub('bool')}, {full()}, {sub()})"]
    if kind == "bool":
        choices += [
            lambda: f"({full(number)} {draw(st.sampled_from(['<', '<=', '==', '!=', '>']))} {sub(number)})",
            lambda: f"({full()} {draw(st.sampled_from(['&', '|', '^', 'and', 'or']))} {sub()})",
            lambda: f"(not {full()})",
        ]
    else:
        choices += [
            lambda: f"({full()} {draw(st.sampled_from(['+', '-', '*']))} {sub()})",
            lambda: f"max({full()}, {sub()})",
            lambda: f"abs({full()})",
        ]
    if kind == "int":
        choices += [lambda: f"({full()} {draw(st.sampled_from(['//', '%']))} {sub()})", lambda: f"int({full('float')})"]
        choices += [lambda: f"gather(parent, {full()})", lambda: f"gather(parent - row, {full()})"]
        if not wide:
            choices += [
                lambda: f"{draw(st.sampled_from(['sum', 'max', 'min']))}({expression(draw, 'int', True, depth - 1)})",
                lambda: f"sum({expression(draw, 'bool', True, depth - 1)})",
                lambda: f"argmax(weights * {sub('int', False)})",
                lambda: "history[-2]",
                lambda: f"sum(scatter(parent, {sub('int', False)}, {sub('int', False)}))",
            ]
    return draw(st.sampled_from(choices))()


@st.composite
def rules(draw: Draw) -> str:
    lines = [f"    x = {expression(draw, 'int', True, 2)}", f"    y = {expression(draw, 'int', False, 2)}"]
    joined = draw(st.sampled_from(["&", "|", "^"]))
    wide = draw(st.booleans())
    lines.append(f"    return {expression(draw, 'bool', wide, 3)} {joined} (x < y)")
    return HEAD + "\n".join(lines) + "\n"


def a_lane(seed: int, num_rows: int, num_before: int) -> MaskLane:
    rng = np.random.default_rng(seed)
    return MaskLane(
        number=int(rng.integers(3)),
        token_ids=rng.integers(0, 6, num_before + num_rows).tolist(),
        positions=rng.integers(0, 20, num_rows).tolist(),
    )


def one_by_one(rule: BoundProgram, lane: MaskLane) -> Any:
    """The meaning: each row by itself."""
    rows = [result(rule.graph, lane.values(row), rule.parameters) for row in range(len(lane.positions))]
    return np.stack([np.broadcast_to(row, (len(lane.token_ids),)) for row in rows])


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    source=rules(), seed=st.integers(0, 10**6), rows=st.integers(1, 7), before=st.integers(1, 12), block=st.booleans()
)
def test_random_rules_say_the_same_of_all_rows_together(
    source: str, seed: int, rows: int, before: int, block: bool
) -> None:
    try:
        rule = bind_mask(source, PARAMETERS)
    except ProgramInvalid as error:
        assume("deep" not in error.message)
        raise
    lane = a_lane(seed, rows, before)
    with pytest.MonkeyPatch.context() as patched:
        if block:  # two rows at a time
            patched.setattr(masks, "_BLOCK", 2 * len(lane.token_ids))
        found = seen_by_rows(rule, lane)
    np.testing.assert_array_equal(found, one_by_one(rule, lane))


def seen(body: str, lane: MaskLane, **parameters: Any) -> list[list[int]]:
    """Slots that each row sees by a rule of this body."""
    names = ["slot", "history", "positions", "row", "own", "start", "position", *parameters]
    rule = bind_mask(f"def mask({', '.join(names)}):\n{body}\n", parameters)
    return [np.flatnonzero(row).tolist() for row in seen_by_rows(rule, lane)]


LANE = MaskLane(number=0, token_ids=[7, 8, 9, 7, 20, 21, 22, 23], positions=[4, 5, 5, 6])


def test_a_window_with_sinks() -> None:
    found = seen("    return (slot < sinks) | (slot > own - window)", LANE, sinks=1, window=2)
    assert [row[:3] for row in found] == [[0, 3, 4], [0, 4, 5], [0, 5, 6], [0, 6, 7]]


def test_a_tree_by_the_parent_of_each_row() -> None:
    tree = (
        "    above = row\n"
        "    found = slot < start\n"
        "    for _ in range(3):\n"
        "        found = found | (slot == start + above)\n"
        "        above = where(above < 0, -1, gather(parent, above))\n"
        "    return found & ((slot < start) | (slot <= own))"
    )
    found = seen(tree, LANE, parent=[-1, 0, 0, 2])
    assert [[slot - 4 for slot in row if slot >= 4] for row in found] == [[0], [0, 1], [0, 2], [0, 2, 3]]
    assert all(row[:4] == [0, 1, 2, 3] for row in found)


def test_blocks_that_do_not_see_each_other() -> None:
    found = seen(
        "    return (slot < start) | (gather(block, slot - start) == gather(block, row))", LANE, block=[0, 0, 1, 1]
    )
    assert [row[4:] for row in found] == [[4, 5], [4, 5], [6, 7], [6, 7]]


def test_by_token_and_by_position() -> None:
    assert seen("    return (history != 7) & (positions < position)", LANE)[0] == [1, 2]


REFUSED: dict[str, tuple[str, int, int, str]] = {
    "no truth value": ("def mask(slot):\n    return slot\n", 2, 12, "bool[T] or bool; this is i64[T]"),
    "a state": ("state.x = 0\ndef mask(slot):\n    return slot < 1\n", 1, 11, "no state"),
    "a probe": ("def mask(slot):\n    probe.x = 1\n    return slot < 1\n", 2, 5, "notes nothing down"),
    "the vocabulary": ("def mask(slot):\n    return slot < vocab_size\n", 2, 19, "does not know `vocab_size`"),
    "one per token": ("def mask(row):\n    return max(one_hot(row))\n", 2, 16, "knows no vocabulary"),
    "logits": ("def mask(slot):\n    return slot < logits\n", 2, 19, "does not know `logits`"),
    "an input not asked for": ("def mask(slot):\n    return slot < own\n", 2, 19, "must be a parameter"),
    "a draw": ("def mask(slot):\n    return slot < uniform(1)\n", 2, 19, "draws with a key"),
    "a token": ("def sample(logits):\n    return 1\n", 1, 1, "here `mask` is needed"),
    "nothing": ("def mask(slot):\n    x = 1\n", 2, 5, "for each slot whether it is seen"),
}


@pytest.mark.parametrize(("source", "line", "column", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_rule_is_refused_with_its_place(source: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(ProgramInvalid) as caught:
        bind_mask(source, {})
    assert reason in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize("given", [[], [1] * 5000, ["a"], [1, 2**70], [float("nan")], [[1]]])
def test_lists_are_bounded_and_of_numbers(given: Any) -> None:
    with pytest.raises(ProgramMisused, match="`parent`"):
        bind_mask("def mask(slot, parent):\n    return gather(parent, slot) > 0\n", {"parent": given})


def test_a_rule_that_would_take_long_is_refused_before_it_runs() -> None:
    sorts = "".join(f"    x = sort(x + {at})\n" for at in range(40))
    rule = bind_mask(f"def mask(slot, row, x):\n    x = x + row\n{sorts}    return slot < max(x)\n", {"x": [1] * 4096})
    lane = MaskLane(number=0, token_ids=[1] * 600, positions=[1] * 512)
    with pytest.raises(ProgramMisused, match="are allowed"):
        seen_by_rows(rule, lane)
