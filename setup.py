"""Adds the native CPU step to the package that `pyproject.toml` describes.

It is optional: where it cannot be compiled, Wye is installed without it and says why (`wye doctor`).
`WYE_NATIVE=0` leaves it out, `WYE_NATIVE=1` fails where it cannot be built.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # an isolated build has no other way to our own code

from engine.native.building.build import MODULE_FILE, build  # noqa: E402
from engine.native.building.compiler import BuildFailure  # noqa: E402
from engine.native.building.record import RECORD_FILE  # noqa: E402

PACKAGE = Path("engine", "native")


class BuildNative(build_ext):
    """Compiles as `engine.native.building` says instead of as setuptools would."""

    @property
    def directory(self) -> Path:
        """Where the module goes: the build directory, or the source tree for an editable installation."""
        return ROOT / PACKAGE if self.inplace else Path(self.build_lib, PACKAGE)

    def run(self) -> None:
        """Builds it, or writes down why not.

        Raises:
            SetupError: `WYE_NATIVE` insists on it, or is neither 0 nor 1.
        """
        try:
            build(ROOT / PACKAGE / "src", self.directory, os.environ)
        except (BuildFailure, ValueError) as error:
            raise SetupError(str(error)) from None

    def get_outputs(self) -> list[str]:
        """Where the files that `run` has made are in a wheel."""
        names = [name for name in (MODULE_FILE, RECORD_FILE) if (self.directory / name).exists()]
        return [str(Path(self.build_lib, PACKAGE, name)) for name in names]

    def get_output_mapping(self) -> dict[str, str]:
        """For an editable installation: where a file would be in a wheel, and where it is."""
        return {output: str(PACKAGE / Path(output).name) for output in self.get_outputs()} if self.inplace else {}


class BuildWheel(bdist_wheel):
    """Calls a wheel without the module what it is: fit for every machine."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform."""
        native = self.get_finalized_command("build_ext")
        assert isinstance(native, BuildNative)
        if native.inplace or (native.directory / MODULE_FILE).exists():
            return super().get_tag()
        return "py3", "none", "any"


setup(
    ext_modules=[Extension("engine.native._native", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": BuildWheel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
