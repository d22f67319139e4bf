"""One server with the real model for all documented examples."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.sources.store import ModelStore
from loadtests.server import CHECKOUT, RunningServer, running_server

MODEL = "smollm2-135m"
ADMIN_KEY = "the-administrators-key"
"""Of the server with tenants."""


@pytest.fixture(scope="session")
def model_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of its own with the real model in it, so that examples may change it."""
    original = Path(os.environ.get("WYE_HOME") or CHECKOUT / ".wye")
    stored = ModelStore(original).find(MODEL)
    if stored is None:
        pytest.skip(f"{MODEL} is not in the model store: run `make model`")
    copy = tmp_path_factory.mktemp("store")
    shutil.copytree(stored.directory, copy / stored.directory.relative_to(original), copy_function=os.link)
    return copy


@pytest.fixture(scope="session")
def server(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The server that examples talk to."""
    log_path = tmp_path_factory.mktemp("server") / "log"
    with running_server(MODEL, log_path=log_path, environment={"WYE_HOME": str(model_store)}) as running:
        yield running


@pytest.fixture(scope="session")
def tenant_server(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The server with tenants that some examples talk to."""
    directory = tmp_path_factory.mktemp("tenants")
    environment = {
        "WYE_HOME": str(model_store),
        "WYE_STATE_DIR": str(directory / "state"),
        "WYE_ADMIN_KEY": ADMIN_KEY,
        "WYE_API_KEYS": "key-of-the-settings",
    }
    with running_server(MODEL, log_path=directory / "log", environment=environment) as running:
        yield running
