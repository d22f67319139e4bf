"""Prints make's rules for the native step's files, compiled with the flags they are built with.

Usage: rules.py DIRECTORY [FORM...]: where objects go, and the forms to build if not all that the compiler knows.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from engine.native.building.build import unit_flags  # noqa: E402
from engine.native.building.compiler import find_compiler  # noqa: E402
from engine.native.building.flags import FORMS, Form, form_of  # noqa: E402
from engine.native.building.sources import source_files, with_includes  # noqa: E402

OF_PYTHON = ("module", "sampling_module")
"""Files that need Python's headers."""


def rules(directory: str, asked: list[str]) -> str:
    """All rules, and a variable OBJECTS."""
    compiler = find_compiler(os.environ)
    left_out = tuple(form for form in FORMS if (asked and form.name not in asked) or not compiler.knows(form))
    sources = [file for file in source_files(HERE.parent / "src") if file.stem not in OF_PYTHON]
    lines = [_rule(file, directory, left_out) for file in sources if form_of(file) not in left_out]
    objects = [f"{directory}/{file.stem}.o" for file in sources if form_of(file) not in left_out]
    return "\n".join([*lines, f"OBJECTS := {' '.join(objects)}", ""])


def _rule(source: Path, directory: str, left_out: tuple[Form, ...]) -> str:
    target, needs = (
        f"{directory}/{source.stem}.o",
        " ".join(os.path.relpath(file, HERE) for file in with_includes(source)),
    )
    flags = " ".join(unit_flags(source, left_out))
    return f"{target}: {needs}\n\t$(COMPILE) {flags} $(SANITIZER) -c {os.path.relpath(source, HERE)} -o $@"


if __name__ == "__main__":
    print(rules(sys.argv[1], sys.argv[2:]), end="")
