"""What programs say in their header that they need, before they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from engine.request import AdapterInfo
from extensions.errors import CapabilityMissing, ProgramInvalid
from extensions.library import shipped_names, shipped_source
from extensions.programs.capabilities import KNOWN, OF_WORLD, capabilities
from extensions.programs.header import read_header
from extensions.programs.program import Program
from extensions.programs.world import World
from tests.extensions.programs.stage import Stage

ATTENTION = """EXTENSION = {
    "name": "needy",
    "capabilities": [
        "forward",
        "attention",
    ],
}


async def main(request, lm):
    await lm.emit("ran")
"""


def header(listed: str) -> str:
    """A program with a header on one line, whose first text has more bytes than characters."""
    fields = f"{{'name': 'x', 'description': 'é', 'capabilities': {listed}}}"
    return f"EXTENSION = {fields}\nasync def main(request, lm): pass\n"


def test_what_a_program_needs_is_read_without_running_it() -> None:
    needs = read_header(ATTENTION).needs
    assert [(one.name, one.line, one.column, one.end_column) for one in needs] == [
        ("forward", 4, 9, 18),
        ("attention", 5, 9, 20),
    ]
    assert read_header(header("()")).needs == []


@pytest.mark.parametrize(
    ("listed", "places"),
    [
        ("['attention', 'atention']", [(14, "capability_missing")]),
        ("['é', 'wings']", [(1, "capability_missing"), (6, "capability_missing")]),
        ("['steps', 'steps']", [(10, "")]),
        ("['steps', 3]", [(10, "")]),
        ("'steps'", [(0, "")]),
        ("{'steps'}", [(0, "")]),
        ("None", [(0, "")]),
    ],
)
def test_a_wrong_list_is_told_with_the_place_of_each_entry(listed: str, places: Sequence[tuple[int, str]]) -> None:
    source = header(listed)
    found = read_header(source).diagnostics
    assert [one.line for one in found] == [1] * len(places)
    assert [(one.column - 1 - source.index(listed), one.rule) for one in found] == places


async def test_a_program_that_needs_what_is_not_there_does_not_run(stage: Stage) -> None:
    assert not stage.engine.info.reads_attention
    with pytest.raises(CapabilityMissing) as caught:
        await stage.run(ATTENTION)
    assert [(one.line, one.column, one.rule) for one in caught.value.diagnostics] == [(5, 9, "capability_missing")]
    assert "no 'attention'" in caught.value.message
    assert stage.events == []
    made = await stage.run(ATTENTION.replace('"attention"', '"steps"'))
    assert made.content == "ran"


async def test_a_name_that_nothing_has_is_refused_wherever_a_program_is_checked(stage: Stage) -> None:
    for _ in range(2):  # the second time it is remembered
        with pytest.raises(CapabilityMissing) as caught:
            await stage.runtime.check_program(ATTENTION.replace('"attention"', '"wings"'))
        assert caught.value.code == "capability_missing"
    with pytest.raises(ProgramInvalid) as mixed:
        await stage.runtime.check_program(ATTENTION.replace('"attention"', '"wings"') + "    undefined\n")
    assert mixed.value.code == "program_invalid"
    assert [one.line for one in mixed.value.diagnostics] == [5, 12]


async def test_a_child_that_needs_what_is_not_there_is_refused_alone(stage: Stage) -> None:
    class Children:
        async def find(self, name: str) -> Program:
            raise NotImplementedError(name)

        async def check(self, source: str) -> Program:
            return await stage.runtime.check_program(source)

    stage.world = World(children=Children())
    said = await stage.value(f"""
        try:
            await lm.run_source({ATTENTION!r})
        except RuntimeError as error:
            return [str(error).partition(":")[0], "line 5, column 9" in str(error)]
    """)
    assert said == ["capability_missing", True]


async def test_what_is_there_has_names_that_programs_can_ask_for(stage: Stage) -> None:
    door: Any = object()
    everything = World(tools=door, values=door, mail=door, inbox=door, children=door, prefixes=door)
    assert tuple(everything.capabilities) == OF_WORLD
    plain = stage.engine.info
    poet = AdapterInfo(name="poet", kind="lora", rank=8, digest="00")
    info = msgspec.structs.replace(plain, adapters=(poet,), sites={"q": (8, 8)}, reads_attention=True)
    assert tuple(capabilities(info, everything)) == KNOWN
    assert set(KNOWN) - set(capabilities(plain, World())) == {"adapters", "site_adapters", "attention", *OF_WORLD}


def test_programs_of_the_library_say_what_they_need() -> None:
    declared = {name: {one.name for one in read_header(shipped_source(name)).needs} for name in shipped_names()}
    for name, needs in declared.items():
        source = shipped_source(name)
        assert ("attention" in needs) == ("on_attention" in source)
        assert ("children" in needs) == ("lm.run" in source)
        assert "tools" in needs or "lm.tools()" not in source or '"tools" in lm.model.capabilities' in source
