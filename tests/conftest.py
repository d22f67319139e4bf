"""What tests of several packages share: the real model, and how long a drawn example may take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from engine.sources.errors import SourceError
from engine.sources.locking import lock_file
from engine.sources.store import ModelStore

if os.environ.get("WYE_TEST_DEVICE", "cuda" if torch.cuda.is_available() else "cpu") == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton: kernels run on CPU tensors then
else:
    os.environ["WYE_TEST_DEVICE"] = "cuda"

# The suite's processes share the cores already: threads that wait for each other would wait for those of another one.
torch.set_num_threads(1)
os.environ.setdefault("WYE_THREADS", "1")
pytest.MonkeyPatch().setattr("engine.resolve.processor_share", lambda: 1.0)

settings.register_profile("wye", deadline=None)  # tests say what is right, not how fast a busy machine is
settings.load_profile("wye")


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The SmolLM2 GGUF file; skipped where it is not stored (`make model`)."""
    home = os.environ.get("WYE_HOME") or Path(__file__).parents[1] / ".wye"
    try:
        return ModelStore(Path(home)).resolve(os.environ.get("WYE_TEST_MODEL", "smollm2-135m"))
    except SourceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def transformers_model(real_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Any]]:
    """Gives the real model as `transformers` reads its GGUF file: a causal language model in float32, new at each call.

    Reading that file takes it some 25 s of processor time: the first process of the suite does, and writes the module
    down for all others.
    """
    from transformers import AutoModelForCausalLM

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path, partial = shared / "transformers_model.pt", shared / "transformers_model.partial"
    with lock_file(shared / "transformers_model.lock", wait=True):
        if not path.exists():
            model = AutoModelForCausalLM.from_pretrained(
                real_model_path.parent, gguf_file=real_model_path.name, dtype=torch.float32
            )
            torch.save(model.eval(), partial)
            partial.rename(path)
        stored = path.open("rb")

    def load() -> Any:
        stored.seek(0)
        return torch.load(stored, weights_only=False)  # our own: a module, not weights alone

    with stored:
        yield load
    path.unlink(missing_ok=True)  # half a gigabyte; who has it open still reads it


HEAVY = ("e2e", "loadtests", "native", "documentation", "cuda", "equivalence")
"""Directories whose files take longer than most."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest come first: later ones would keep one process busy when all others are done.

    Processes keep to this order with `--no-loadscope-reorder` alone: else files with few tests come last, and those of
    the real model have few.
    """
    slow = {item.path for item in items if "real_model" in item.keywords or "slow" in item.keywords}
    items.sort(key=lambda item: 0 if item.path in slow else 1 if set(item.path.parts) & set(HEAVY) else 2)
