"""llama.cpp, built once out of the source package of `llama-cpp-python` and kept outside the repository.

Only `loadtests.peers` needs it. A build takes minutes; what it leaves is four programs without shared libraries and a
note of how they were made. Sources and object files go when it has succeeded; until then a further run resumes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

VERSION = "0.3.36"
REQUIREMENT = (
    f"llama-cpp-python=={VERSION} --hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
)
PROGRAMS = ("llama-batched-bench", "llama-bench", "llama-quantize", "llama-server")
TOOLS: Mapping[str, Sequence[str]] = {
    "cmake": ("cmake",),
    "ninja": ("ninja",),
    "a C compiler": ("cc", "gcc", "clang"),
    "a C++ compiler": ("c++", "g++", "clang++"),
}
"""What a build needs, and the names any of which will do."""

CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)

TILES = Path("ggml/src/ggml-cpu/amx/mmq.cpp")
LOAD_TILES = "    _tile_loadconfig(&tc);\n"
KEEP_STORES = '    asm volatile("" :: "r"(&tc) : "memory");\n'
"""gcc 12 takes the stores to the AMX tile configuration for dead and drops them: every quantised model then ends with
an illegal instruction. An empty statement that may read the configuration keeps them."""


class BuildFailed(Exception):
    """llama.cpp could not be built; the text says what is missing or how the build ended."""


def ensure_llama(peers: Path) -> Path:
    """Directory with llama.cpp's programs, built first if they are not there.

    Args:
        peers: Where peers are kept. Another process that builds at the same time is waited for.

    Raises:
        BuildFailed: A tool is missing, the source cannot be fetched, or the build failed.
    """
    finished = peers / f"llama.cpp-{VERSION}"
    if finished.is_dir():
        return finished
    require_tools()
    with _locked(peers / "building"):
        if not finished.is_dir():
            print(f"building llama.cpp of llama-cpp-python {VERSION}; this takes minutes, once", flush=True)
            _build(peers / "building" / finished.name, finished)
    return finished


def require_tools() -> None:
    """Checks that everything a build calls is on the PATH.

    Raises:
        BuildFailed: Something is missing; all of it is named.
    """
    missing = [what for what, names in TOOLS.items() if not any(map(shutil.which, names))]
    if missing:
        raise BuildFailed(
            f"building llama.cpp needs {', '.join(missing)} on the PATH: install what is missing, "
            "or name a directory that has llama.cpp's programs with --llama"
        )


def unpack(archive: Path, source: Path) -> None:
    """Takes llama.cpp out of the source package, repaired for gcc 12.

    Args:
        archive: The package, a gzipped tar file.
        source: Directory to make; appears only when it is whole.

    Raises:
        BuildFailed: The package does not hold llama.cpp where it is expected, or not the line to repair.
    """
    scratch = source.with_name("unpacking")
    shutil.rmtree(scratch, ignore_errors=True)
    with tarfile.open(archive) as package:
        package.extractall(scratch, filter="data")
    found = list(scratch.glob("*/vendor/llama.cpp"))
    if len(found) != 1:
        raise BuildFailed(f"{archive.name} has no vendor/llama.cpp")
    repair(found[0])
    found[0].rename(source)
    shutil.rmtree(scratch)


def repair(source: Path) -> None:
    """Keeps gcc 12 from dropping the stores to the AMX tile configuration; see `KEEP_STORES`.

    Raises:
        BuildFailed: The place is not as expected.
    """
    text = (source / TILES).read_text(encoding="utf-8")
    if text.count(LOAD_TILES) != 1:
        raise BuildFailed(f"{TILES} does not load the tile configuration in one place, as it is known to")
    (source / TILES).write_text(text.replace(LOAD_TILES, KEEP_STORES + LOAD_TILES), encoding="utf-8")


def run(command: Sequence[str], log: Path) -> None:
    """Runs one command of a build, its output added to `log`.

    Raises:
        BuildFailed: It could not be started or failed; the text holds the end of the log.
    """
    with log.open("ab") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        try:
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        except OSError as error:
            raise BuildFailed(f"{command[0]}: {error}") from error
    if code != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        raise BuildFailed("\n".join([f"{command[0]} ended with exit code {code}; the end of {log}:", *tail]))


def _build(work: Path, finished: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    log, source, objects = work / "build.log", work / "source", work / "build"
    if not source.is_dir():
        unpack(_download(work / "package", log), source)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    run(["cmake", "-G", "Ninja", "-S", str(source), "-B", str(objects), *CMAKE_OPTIONS], log)
    run(["ninja", "-C", str(objects), "-j", str(cores), *PROGRAMS], log)
    _publish(objects / "bin", finished)
    shutil.rmtree(work)


def _download(directory: Path, log: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    wanted = directory / "requirements.txt"
    wanted.write_text(f"{REQUIREMENT}\n", encoding="utf-8")
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
    run([sys.executable, "-m", "pip", "download", *options, "-r", str(wanted), "-d", str(directory)], log)
    archives = list(directory.glob("*.tar.gz"))
    if len(archives) != 1:
        raise BuildFailed(f"pip left {len(archives)} source packages in {directory}, not one")
    return archives[0]


def _publish(built: Path, finished: Path) -> None:
    """Puts the programs in place all at once, so that a directory that exists is whole."""
    partial = finished.with_name(f"{finished.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for program in PROGRAMS:
        shutil.copy2(built / program, partial / program)
    note = {"package": REQUIREMENT.split()[0], "cmake": CMAKE_OPTIONS, "repaired": str(TILES)}
    (partial / "build.json").write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
    partial.rename(finished)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
