"""Compiles the native step into one extension module, or says why it cannot."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.native.building.cache import Cache, digest, open_cache
from engine.native.building.compiler import BuildFailure, Compiler, find_compiler
from engine.native.building.flags import COMMON, FORMS, LINK, Form, form_of
from engine.native.building.record import BuildRecord, write_record
from engine.native.building.sources import source_digest, source_files, whole_digest, with_includes

MODULE_FILE = "_native.abi3.so"


def build(sources: Path, target: Path, environ: Mapping[str, str]) -> BuildRecord:
    """Puts the module into a directory, or removes it from there, and writes down which and why.

    Args:
        sources: Directory of the C++ files.
        target: Directory of the module and of the record.
        environ: `WYE_NATIVE` (0 builds nothing, 1 insists), `WYE_NATIVE_CACHE`, `CXX`, `CXXFLAGS`, `LDFLAGS`, `PATH`.

    Returns:
        What was written down.

    Raises:
        BuildFailure: `WYE_NATIVE` insists, and it cannot be compiled.
        ValueError: `WYE_NATIVE` is neither 0 nor 1.
    """
    asked = environ.get("WYE_NATIVE", "")
    if asked not in ("", "0", "1"):
        raise ValueError(
            f"WYE_NATIVE is {asked!r}; write 0 to build no native step, 1 to fail where it cannot be built"
        )
    target.mkdir(parents=True, exist_ok=True)
    try:
        if asked == "0":
            raise BuildFailure("WYE_NATIVE=0 was set when Wye was installed")
        with open_cache(environ) as cache:
            library, record = _make(sources, find_compiler_for_this_machine(environ), cache)
            _install(library, target / MODULE_FILE)
    except BuildFailure as failure:
        (target / MODULE_FILE).unlink(missing_ok=True)
        record = BuildRecord(built=False, reason=failure.reason, sources=whole_digest(sources))
        write_record(record, target)
        if asked == "1":
            raise
        _warn(failure)
        return record
    write_record(record, target)
    return record


def find_compiler_for_this_machine(environ: Mapping[str, str]) -> Compiler:
    """The compiler, if this is a machine that the native step is written for.

    Raises:
        BuildFailure: It is not, or there is no compiler, or Python's headers are missing.
    """
    machine = platform.machine().lower()
    if sys.platform != "linux" or machine not in ("x86_64", "amd64") or sys.maxsize < 2**32:
        raise BuildFailure(f"it is written for 64-bit Linux on x86-64, and this is {sys.platform} on {machine}")
    compiler = find_compiler(environ)
    if not any(Path(directory, "Python.h").exists() for directory in _include_directories()):
        raise BuildFailure("the headers of Python are missing; install them (python3-dev) and install Wye again")
    return compiler


def unit_flags(source: Path, left_out: tuple[Form, ...]) -> list[str]:
    """Flags of one file, includes of Python apart."""
    form = form_of(source)
    return [*COMMON, *(form.flags if form else ()), *(other.left_out for other in left_out)]


def _make(sources: Path, compiler: Compiler, cache: Cache) -> tuple[Path, BuildRecord]:
    files = source_files(sources)
    if not files:
        raise BuildFailure("its sources are not there")
    wanted = [form for form in FORMS if any(form_of(file) == form for file in files)]
    left_out = tuple(form for form in wanted if not compiler.knows(form))
    files = [file for file in files if form_of(file) not in left_out]
    objects = _objects(files, left_out, compiler, cache)
    key = digest(compiler.version, *compiler.link_flags, *LINK, *(path.name for path in objects))

    def link(path: Path) -> None:
        compiler.link(objects, path, LINK)
        _check_loads(path)

    library = cache.fetch(key, MODULE_FILE, link)
    record = BuildRecord(
        built=True,
        compiler=compiler.title,
        forms=tuple(form.name for form in wanted if form not in left_out),
        left_out=tuple(form.name for form in left_out),
        sources=whole_digest(sources),
    )
    return library, record


def _objects(files: list[Path], left_out: tuple[Form, ...], compiler: Compiler, cache: Cache) -> list[Path]:
    includes = [f"-I{directory}" for directory in _include_directories()]

    def make(file: Path) -> Path:
        flags = unit_flags(file, left_out)
        made_from = source_digest(file, *with_includes(file))
        key = digest(compiler.version, *compiler.flags, *flags, sys.version, made_from)
        return cache.fetch(key, ".o", lambda path: compiler.compile(file, path, [*flags, *includes]))

    with ThreadPoolExecutor(_cores()) as pool:
        try:
            return list(pool.map(make, files))
        except BuildFailure:
            pool.shutdown(cancel_futures=True)
            raise


def _check_loads(library: Path) -> None:
    """Loads the module in a process of its own: a symbol that nothing defines shows only then."""
    code = (
        "import importlib.util as u, sys; from importlib.machinery import ExtensionFileLoader; path = sys.argv[1]; "
        "s = u.spec_from_file_location('_native', path, loader=ExtensionFileLoader('_native', path)); "
        "s.loader.exec_module(u.module_from_spec(s))"
    )
    command = [sys.executable, "-I", "-c", code, str(library)]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode != 0:
        said = result.stderr.strip().replace(str(library), "the module") or f"signal {-result.returncode}"
        raise BuildFailure(f"what was compiled does not load: {said.splitlines()[-1]}", said)


def _install(library: Path, target: Path) -> None:
    """Copies under another name and renames: a running server may have the old file mapped."""
    handle, name = tempfile.mkstemp(prefix=".new-", dir=target.parent)
    os.close(handle)
    try:
        shutil.copyfile(library, name)
        Path(name).chmod(0o755)
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)


def _warn(failure: BuildFailure) -> None:
    print(
        f"warning: the native CPU step of Wye was not built: {failure.reason}\n"
        "warning: Wye works all the same; on a CPU it computes with torch, several times slower",
        file=sys.stderr,
    )
    if failure.details:
        print(failure.details, file=sys.stderr)


def _include_directories() -> list[str]:
    paths = sysconfig.get_paths()
    return list(dict.fromkeys([paths["include"], paths["platinclude"]]))


def _cores() -> int:
    with contextlib.suppress(AttributeError):  # only Linux has affinities
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
