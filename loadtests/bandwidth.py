"""The physical limit of a decode step: how fast memory can be read, and the time that reading the weights takes.

A step of a model reads every weight once (an embedding table that is not the head as well is looked up, not read) and,
for each sequence, the K and V of all its tokens. Nothing can be faster than memory brings these bytes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import statistics
import subprocess
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from engine.models.gguf_file import GGUFFile
from engine.request import EngineInfo
from loadtests.contest import Shape

SOURCE = Path(__file__).with_name("bandwidth.c")
FLAGS = ("-O3", "-march=native", "-pthread")
STREAMS = (1, 2, 4, 8, 16)
"""Interleaved streams a thread that are tried; which is fastest differs between processors."""

BYTES_PER_WEIGHT = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0 + 2 / 64}
"""In memory; int8 has one bfloat16 scale for 64 weights."""


class ProbeFailed(Exception):
    """Memory could not be measured; the text says what is missing or went wrong."""


@dataclass(slots=True)
class MemoryProbe:
    """Measures how fast all threads together read memory.

    Attributes:
        program: The compiled probe.
        threads: Threads that read.
        mebibytes: Size of the block that is read: the weights of a model, so that as much of it lies in caches.
        rounds: GB/s (1e9 bytes a second) of each measurement so far.
    """

    program: Path
    threads: int
    mebibytes: int
    rounds: list[float] = field(default_factory=list)

    def measure(self, passes: int = 5) -> float:
        """Adds one round: the fastest number of streams, by the median of its passes.

        Raises:
            ProbeFailed: The probe failed.
        """
        self.rounds.append(max(self._median(streams, passes) for streams in STREAMS))
        return self.rounds[-1]

    @property
    def gigabytes_per_s(self) -> float:
        """Median over rounds."""
        return statistics.median(self.rounds)

    def _median(self, streams: int, passes: int) -> float:
        command = [str(self.program), *map(str, (self.threads, self.mebibytes, passes, streams))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return statistics.median(map(float, done.stdout.split()))
        except subprocess.CalledProcessError as error:
            raise ProbeFailed(f"the memory probe failed: {error.stderr.strip()}") from None
        except (OSError, ValueError) as error:
            raise ProbeFailed(f"the memory probe failed: {error}") from error


def compiled_probe(peers: Path) -> Path:
    """The probe's program, compiled first if it is not there.

    Args:
        peers: Where it is kept, under a name made of its source.

    Raises:
        ProbeFailed: There is no C compiler, or it refused.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or [next(filter(shutil.which, ("cc", "gcc", "clang")), "")]
    if not compiler[0]:
        raise ProbeFailed("measuring memory needs a C compiler (cc, gcc or clang) on the PATH")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    program = peers / f"bandwidth-{digest}"
    if not program.is_file():
        peers.mkdir(parents=True, exist_ok=True)
        partial = program.with_name(f"{program.name}.{os.getpid()}")
        command = [*compiler, *FLAGS, str(SOURCE), "-o", str(partial)]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except subprocess.CalledProcessError as error:
            raise ProbeFailed(f"{compiler[0]} refused the memory probe:\n{error.stderr}") from None
        except OSError as error:
            raise ProbeFailed(f"{compiler[0]}: {error}") from error
        partial.rename(program)
    return program


def weights_read(model: Path) -> int:
    """Weights that a step reads, of a GGUF file.

    Raises:
        ModelLoadError: The file is damaged.
    """
    file = GGUFFile(model)
    names = file.names()
    looked_up = {"token_embd.weight"} if "output.weight" in names else set()
    return sum(prod(file.shape(name)) for name in names - looked_up)


def bytes_per_step(info: EngineInfo, num_weights: int, shape: Shape) -> float:
    """Bytes that one decode step of a shape reads, half of its output done.

    Args:
        info: The engine, for the formats of weights, K and V.
        num_weights: As `weights_read` counts them.
        shape: Width and lengths.
    """
    context = shape.num_prompt + shape.num_output / 2
    kv_bytes = info.page_bytes / info.page_size
    return num_weights * BYTES_PER_WEIGHT[info.dtype] + shape.width * context * kv_bytes


def mebibytes(num_bytes: float) -> int:
    """As a whole number of MiB, at least one."""
    return max(1, round(num_bytes / 2**20))


def floor_rate(shape: Shape, num_bytes: float, gigabytes_per_s: float) -> float:
    """Tokens per second of a step that does nothing but read its bytes."""
    return shape.width * gigabytes_per_s * 1e9 / num_bytes
