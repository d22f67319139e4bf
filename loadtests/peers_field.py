"""Who takes part in `loadtests.peers`, who is held against whom, and how they are started."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.contest import BatchContestant, Contestant, Shape
from loadtests.driver import BatchTiming, EngineDriver, PromptSource
from loadtests.llama_peer import LlamaContestant, LlamaCpp
from loadtests.models import home
from loadtests.offline import engine_config
from loadtests.openvino_peer import running_peer
from loadtests.targets import Weights

Run = Callable[[Sequence[Sequence[int]], int], BatchTiming]
"""Continues prompts by so many tokens."""

LLAMA_KINDS: Mapping[str, Mapping[Weights, Sequence[str]]] = {
    "decode": {"bfloat16": ("BF16",), "int8": ("Q8_0", "Q4_1")},
    "prefill": {"bfloat16": ("Q4_1",), "int8": ("Q4_1",)},
}
"""Which formats of llama.cpp each of ours is held against."""

OPENVINO_KINDS: Mapping[Weights, str] = {"bfloat16": "F16", "int8": "Q8_0"}


def measured_name(options: argparse.Namespace) -> str:
    """What tables call the weights that everybody has."""
    name = Path(options.model).stem if options.model.endswith(".gguf") else options.model
    return f"random weights in the shape of {name}" if options.random_weights else str(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairing:
    """Two contestants whose rates are compared."""

    weights: Weights
    ours: str
    kind: str
    peer: str


def pairings(shape: Shape, formats: Sequence[Weights], *, openvino: bool) -> list[Pairing]:
    """What is compared on one shape."""
    found = []
    for weights in formats:
        ours = f"Wye {weights}"
        kinds = LLAMA_KINDS[shape.phase][weights]
        found += [Pairing(weights=weights, ours=ours, kind=kind, peer=f"llama.cpp {kind}") for kind in kinds]
        if openvino:
            kind = OPENVINO_KINDS[weights]
            found.append(Pairing(weights=weights, ours=ours, kind=kind, peer=f"OpenVINO {kind}"))
    return found


def llama_kinds(formats: Sequence[Weights]) -> list[str]:
    """Formats of llama.cpp that take part."""
    return list(dict.fromkeys(kind for of in LLAMA_KINDS.values() for weights in formats for kind in of[weights]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """Everybody who takes part, by name, with what their tables need.

    Attributes:
        contestants: Started and warm.
        drivers: Our engines by format of weights.
        openvino: Version of OpenVINO GenAI, or None if it does not take part.
    """

    contestants: Mapping[str, Contestant]
    drivers: Mapping[Weights, EngineDriver]
    openvino: str | None

    def entries(self, todo: Sequence[Shape]) -> dict[Shape, list[Contestant]]:
        """Who takes part in which shape: those that are compared there."""
        entered: dict[Shape, list[Contestant]] = {}
        for shape in todo:
            pairs = pairings(shape, list(self.drivers), openvino=self.openvino is not None)
            names = dict.fromkeys(name for pair in pairs for name in (pair.ours, pair.peer))
            entered[shape] = [self.contestants[name] for name in names]
        return entered


@contextlib.contextmanager
def assembled(options: argparse.Namespace, model: Path, llama: LlamaCpp) -> Iterator[Field]:
    """Loads our engines and the peers' weights; all are gone after the `with`."""
    files = home() / "peers" / "models"
    kinds = dict.fromkeys(
        kind for by_weights in LLAMA_KINDS.values() for w in options.formats for kind in by_weights[w]
    )
    contestants: dict[str, Contestant] = {}
    for kind in kinds:
        name = f"llama.cpp {kind}"
        contestants[name] = LlamaContestant(name=name, llama=llama, model=llama.quantised(model, kind, files))
    drivers: dict[Weights, EngineDriver] = {}
    version = None
    with contextlib.ExitStack() as stack:
        for weights in options.formats:
            config = dataclasses.replace(engine_config(options, model), weights=weights)
            drivers[weights] = stack.enter_context(contextlib.closing(EngineDriver(config)))
        prompts = PromptSource(drivers[options.formats[0]].info.vocab_size, options.seed)
        runs: dict[str, Run] = {f"Wye {weights}": driver.run for weights, driver in drivers.items()}
        if options.openvino is not None:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for kind in (OPENVINO_KINDS[weights] for weights in options.formats):
                file = llama.quantised(model, kind, files)
                log = logs / f"{kind}.log"
                peer = stack.enter_context(running_peer(options.openvino, file, llama.threads, log))
                runs[f"OpenVINO {kind}"] = peer.run
                version = peer.version
        for name, run in runs.items():
            run(prompts.draw(2, 64), 8)
            contestants[name] = BatchContestant(name=name, run=run, prompts=prompts)
        yield Field(contestants=contestants, drivers=drivers, openvino=version)
