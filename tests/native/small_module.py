"""A small extension module to build in tests, and compilers that tell what they are asked."""

from __future__ import annotations

import importlib.util
import shutil
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import pytest

_MODULE = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "level.h"

int avx512_level();

static PyObject* levels(PyObject*, PyObject*) {
#ifdef WYE_NO_AVX512
  const int other = -1;
#else
  const int other = avx512_level();
#endif
  return Py_BuildValue("(ii)", level(), other);
}
static PyMethodDef methods[] = {{"levels", levels, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&definition); }
"""

_LEVEL = r"""
#pragma once
#ifdef __AVX512F__
constexpr int kLevel = 512;
#else
constexpr int kLevel = 1;
#endif
// Deliberately one function under one name in files compiled differently.
[[gnu::noinline]] inline int level() { return kLevel; }
"""

_AVX512 = '#include "level.h"\nint avx512_level() { return kLevel + 0 * level(); }\n'

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("c++", "g++", "clang++")), reason="there is no C++ compiler"
)


def write_sources(directory: Path) -> Path:
    """Writes sources of a module with a function `levels` and one file of the form avx512."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "a_avx512.cpp").write_text(_AVX512, encoding="utf-8")
    (directory / "level.h").write_text(_LEVEL, encoding="utf-8")
    (directory / "module.cpp").write_text(_MODULE, encoding="utf-8")
    return directory


def load_module(path: Path) -> ModuleType:
    """Loads an extension module from a file."""
    spec = importlib.util.spec_from_file_location("_native", path, loader=ExtensionFileLoader("_native", str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class WatchedCompiler:
    """The machine's compiler behind a script that notes what it is asked to compile and link.

    Args:
        directory: Of the script and its notes.
        unknown: An argument that it refuses.
    """

    def __init__(self, directory: Path, unknown: str = "no-such-argument") -> None:
        real = next(path for name in ("c++", "g++", "clang++") if (path := shutil.which(name)))
        self._notes = directory / "notes"
        self.path = directory / "watched-c++"
        self.path.write_text(
            "#!/bin/sh\n"
            f'for word in "$@"; do [ "$word" = "{unknown}" ] && echo "error: unknown $word" >&2 && exit 1; done\n'
            f'for word in "$@"; do case "$word" in *.cpp|-shared) echo "$word" >> {self._notes};; esac; done\n'
            f'exec {real} "$@"\n',
            encoding="utf-8",
        )
        self.path.chmod(0o755)

    def asked(self) -> list[str]:
        """Files compiled since the last call, sorted, and `-shared` for a link."""
        lines = self._notes.read_text(encoding="utf-8").split() if self._notes.exists() else []
        self._notes.unlink(missing_ok=True)
        return sorted(name for name in lines if name != "probe.cpp")
