"""OpenVINO GenAI as a peer, on the same weights: it reads GGUF files itself and runs in an interpreter of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from loadtests.driver import BatchTiming, SequenceTiming

VERSION = "2026.4.1.0"
CHILD = Path(__file__).with_name("openvino_child.py")


class OpenVinoFailed(Exception):
    """OpenVINO GenAI could not be installed or started, or broke off; the text holds the end of its log."""


def find_python(peers: Path) -> Path | None:
    """The interpreter that has OpenVINO GenAI: of the environment under `peers`, else this one; None if neither has."""
    installed = _environment(peers)
    if installed.is_file():
        return installed
    return Path(sys.executable) if importlib.util.find_spec("openvino_genai") else None


def install(peers: Path) -> Path:
    """The interpreter of an environment under `peers` that has OpenVINO GenAI, made first if it is not there.

    Raises:
        OpenVinoFailed: pip failed.
    """
    python = _environment(peers)
    if not python.is_file():
        print(f"installing OpenVINO GenAI {VERSION} into {python.parent.parent}", flush=True)
        partial = python.parent.parent.with_name("openvino.partial")
        command = [str(partial / "bin" / "python"), "-m", "pip", "install", "--quiet", f"openvino-genai=={VERSION}"]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(partial)], check=True)
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise OpenVinoFailed(f"OpenVINO GenAI could not be installed: {error}") from error
        partial.rename(python.parent.parent)
    return python


class OpenVinoPeer:
    """A running child with one file of weights, driven token by token.

    Attributes:
        version: As it names itself.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.version: str = self._read()["version"]

    def run(self, prompts: Sequence[Sequence[int]], num_output: int) -> BatchTiming:
        """Generates `num_output` greedy tokens for each prompt, all submitted at once.

        Raises:
            OpenVinoFailed: It broke off, or a sequence did not bring as many tokens as asked for.
        """
        asked = {"prompts": [list(prompt) for prompt in prompts], "num_output": num_output}
        with contextlib.suppress(BrokenPipeError):  # reading says why it has gone
            _pipe(self._process.stdin).write(f"{json.dumps(asked)}\n")
            _pipe(self._process.stdin).flush()
        sequences = [SequenceTiming(times=times) for times in self._read()["times"]]
        counts = {len(sequence.times) for sequence in sequences}
        if len(sequences) != len(prompts) or counts != {num_output}:
            raise OpenVinoFailed(f"asked for {num_output} tokens of {len(prompts)} prompts, got {sorted(counts)}")
        wall_s = max(sequence.times[-1] for sequence in sequences)
        return BatchTiming(num_prompt_tokens=sum(map(len, prompts)), sequences=sequences, wall_s=wall_s)

    def _read(self) -> Mapping[str, Any]:
        line = _pipe(self._process.stdout).readline()
        if not line:
            tail = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            raise OpenVinoFailed("\n".join(["OpenVINO GenAI ended early:", *tail]))
        answer: Mapping[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def running_peer(python: Path, model: Path, threads: int, log: Path, kv_gib: int = 1) -> Iterator[OpenVinoPeer]:
    """OpenVINO GenAI with a model loaded, gone after the `with`.

    Args:
        python: An interpreter that has it.
        model: GGUF file.
        threads: Threads of a step.
        log: Where what it prints goes.
        kv_gib: GiB for K and V.

    Raises:
        OpenVinoFailed: It could not load the model.
    """
    command = [str(python), str(CHILD), str(model), str(threads), str(kv_gib)]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield OpenVinoPeer(process, log)
        finally:
            process.kill()


def _environment(peers: Path) -> Path:
    return peers / "openvino" / "bin" / "python"


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
