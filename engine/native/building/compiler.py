"""The C++ compiler of this machine: where it is, what it knows, and running it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.native.building.flags import Form

_NAMES = ("c++", "g++", "clang++")


class BuildFailure(Exception):
    """The native step cannot be compiled here.

    Attributes:
        reason: Half a sentence that names the cause and what helps.
        details: What the compiler said, in full.
    """

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = details


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler.

    Attributes:
        command: Program and leading arguments.
        version: All it says about itself; a different compiler says something else.
        flags: What the environment adds to every compilation (`CXXFLAGS`).
        link_flags: What it adds to the link (`LDFLAGS`).
    """

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its name and version in one line."""
        return self.version.splitlines()[0].strip()

    def compile(self, source: Path, target: Path, flags: Sequence[str]) -> None:
        """Makes an object file.

        Raises:
            BuildFailure: The compiler refused.
        """
        # Beside the source, so that messages and assertions carry its name and no directory of this machine.
        self._run(source.name, [*self.flags, *flags, "-c", source.name, "-o", str(target.absolute())], source.parent)

    def link(self, objects: Sequence[Path], target: Path, flags: Sequence[str]) -> None:
        """Makes a shared library.

        Raises:
            BuildFailure: The linker refused.
        """
        files = [str(path.absolute()) for path in objects]
        arguments = [*flags, *files, *self.link_flags, "-o", str(target.absolute())]
        self._run("the module", arguments, target.parent)

    def knows(self, form: Form) -> bool:
        """Whether compiler and assembler take the flags and instructions of a form."""
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory, "probe.cpp")
            source.write_text(f'void probe() {{ __asm__ volatile("{form.probe}"); }}\n', encoding="utf-8")
            try:
                self.compile(source, source.with_suffix(".o"), form.flags)
            except BuildFailure:
                return False
            return True

    def _run(self, subject: str, arguments: list[str], directory: Path) -> None:
        result = _run([*self.command, *arguments], directory)
        if result.returncode != 0:
            said = (result.stderr.strip() or result.stdout.strip()) or f"it ended with code {result.returncode}"
            raise BuildFailure(f"{self.title} could not make {subject}: {_gist(said)}", said)


def find_compiler(environ: Mapping[str, str]) -> Compiler:
    """The compiler that `CXX` names, or the first usual one on the `PATH`.

    Raises:
        BuildFailure: There is none, or it does not run.
    """
    asked = environ.get("CXX", "").strip()
    search = environ.get("PATH")
    if asked:
        command = shlex.split(asked)
        program = shutil.which(command[0], path=search)
        if program is None:
            raise BuildFailure(f"CXX is {asked!r}, but there is no such program")
    else:
        program = next((path for name in _NAMES if (path := shutil.which(name, path=search))), None)
        if program is None:
            raise BuildFailure("no C++ compiler was found when Wye was installed; install g++ and install Wye again")
        command = [program]
    full = (os.path.abspath(program), *command[1:])
    return Compiler(
        command=full,
        version=_version(full),
        flags=tuple(shlex.split(environ.get("CXXFLAGS", ""))),
        link_flags=tuple(shlex.split(environ.get("LDFLAGS", ""))),
    )


def _version(command: tuple[str, ...]) -> str:
    said = []
    for question in ("--version", "-dumpmachine"):
        result = _run([*command, question])
        if result.returncode != 0 or not result.stdout.strip():
            raise BuildFailure(f"{command[0]} does not tell its version, so it is hardly a C++ compiler")
        said.append(result.stdout.strip())
    return "\n".join(said)


def _run(command: list[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LC_ALL": "C"}  # messages without typographic quotes
    try:
        return subprocess.run(
            command, cwd=directory, env=environ, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise BuildFailure(f"the C++ compiler {command[0]} does not run: {error}") from None


def _gist(said: str) -> str:
    """The line that names the error, out of everything that a compiler says."""
    lines = said.splitlines()
    return next((line.strip() for line in lines if "error" in line.lower()), lines[0].strip())[:500]
