"""llama.cpp as a peer: its own benchmarks and its server, on the same weights."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.contest import Shape
from loadtests.llama_build import PROGRAMS
from loadtests.server import RunningServer, free_port, running_command


class LlamaFailed(Exception):
    """A program of llama.cpp is missing, failed, or answered something else than expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaCpp:
    """The programs of a build.

    Attributes:
        programs: Directory that holds them.
        threads: Threads they are given.
    """

    programs: Path
    threads: int

    def __post_init__(self) -> None:
        missing = [name for name in PROGRAMS if not (self.programs / name).is_file()]
        if missing:
            raise LlamaFailed(f"{self.programs} has no {', '.join(missing)}")

    def quantised(self, source: Path, kind: str, directory: Path) -> Path:
        """The weights of `source` in another format, written once and kept.

        Args:
            source: A GGUF file.
            kind: As llama-quantize names formats, e.g. `Q8_0`. A source named after the format is taken as it is.
            directory: Where to keep what is written.

        Raises:
            LlamaFailed: llama-quantize failed.
        """
        if kind in source.stem.split(".")[1:]:
            return source
        stat = source.stat()
        path = directory / f"{source.stem}-{stat.st_size}-{int(stat.st_mtime)}.{kind}.gguf"
        if not path.is_file():
            directory.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            self._run("llama-quantize", "--allow-requantize", str(source), str(partial), kind, str(self.threads))
            partial.rename(path)
        return path

    def rate(self, model: Path, shape: Shape) -> float:
        """Tokens per second of the shape's phase, in a process of its own that has warmed up.

        Raises:
            LlamaFailed: The benchmark failed.
        """
        return self._decode_rate(model, shape) if shape.phase == "decode" else self._prefill_rate(model, shape)

    @contextlib.contextmanager
    def server(self, model: Path, *, width: int, context: int, log_path: Path | None = None) -> Iterator[RunningServer]:
        """llama-server, ready for `width` streams of up to `context` tokens each.

        Raises:
            ServerFailed: It ended early or was not ready in time.
        """
        port = free_port()
        command = [str(self.programs / "llama-server"), "--model", str(model), "--threads", str(self.threads)]
        command += ["--parallel", str(width), "--ctx-size", str(width * context), "--host", "127.0.0.1"]
        command += ["--port", str(port)]
        with running_command(
            command,
            name="llama-server",
            port=port,
            ready_path="/health",
            environment=own_environment(),
            log_path=log_path,
        ) as server:
            yield server

    def _decode_rate(self, model: Path, shape: Shape) -> float:
        cells = shape.width * (shape.num_prompt + shape.num_output)
        sizes = ["-c", str(cells), "-npp", str(shape.num_prompt), "-ntg", str(shape.num_output), "-npl"]
        common = ["-m", str(model), "-t", str(self.threads), "--output-format", "jsonl"]
        answer = self._answer("llama-batched-bench", [*common, *sizes, str(shape.width)])
        return _number(answer, "speed_tg", "llama-batched-bench")

    def _prefill_rate(self, model: Path, shape: Shape) -> float:
        common = ["-m", str(model), "-t", str(self.threads), "-o", "jsonl"]
        answer = self._answer("llama-bench", [*common, "-p", str(shape.num_prompt), "-n", "0", "-r", "1"])
        return _number(answer, "avg_ts", "llama-bench")

    def _answer(self, program: str, arguments: Sequence[str]) -> Mapping[str, Any]:
        lines = [line for line in self._run(program, *arguments).splitlines() if line.startswith("{")]
        if len(lines) != 1:
            raise LlamaFailed(f"{program} printed {len(lines)} results, not one")
        answer: Mapping[str, Any] = json.loads(lines[0])
        return answer

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=own_environment()
        )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
            raise LlamaFailed(f"{program} ended with exit code {done.returncode}:\n{tail}")
        return done.stdout


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaContestant:
    """llama.cpp with one file of weights; see `Contestant`.

    Attributes:
        name: For the table.
        llama: The programs.
        model: The GGUF file.
    """

    name: str
    llama: LlamaCpp
    model: Path

    def rate(self, shape: Shape) -> float:
        """Tokens per second."""
        return self.llama.rate(self.model, shape)


def own_environment() -> dict[str, str]:
    """The environment without our settings of OpenMP: a peer's threads wait as its authors chose."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}


def _number(answer: Mapping[str, Any], key: str, program: str) -> float:
    value = answer.get(key)
    if not isinstance(value, int | float) or value <= 0:
        raise LlamaFailed(f"{program} gave {key}={value!r}")
    return float(value)
