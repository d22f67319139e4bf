"""Points vLLM's endpoint tests at a running server: their `RemoteOpenAIServer` starts nothing, and nothing of vLLM is
imported. Tests that look at vLLM from inside are left out.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import openai
import pytest

URL = os.environ["SUITE_URL"]
SERVING_FIXTURES = {"client", "server", "remote_server", "openai_client"}


class RemoteOpenAIServer:
    """Stands in for the class of that name: the server is there already."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.url_root = URL

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def url_for(self, *parts: str) -> str:
        """An address below the root."""
        return "/".join([URL, *parts])

    def get_client(self, **kwargs: Any) -> openai.OpenAI:
        """A client of the server."""
        return openai.OpenAI(base_url=f"{URL}/v1", api_key=self.DUMMY_API_KEY, max_retries=0, **kwargs)

    def get_async_client(self, **kwargs: Any) -> openai.AsyncOpenAI:
        """The same, asynchronous."""
        return openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=self.DUMMY_API_KEY, max_retries=0, **kwargs)


class _Hollow(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = {"get_tokenizer": _tokenizer, "RemoteOpenAIServer": RemoteOpenAIServer, "ModelConfig": _ModelConfig}
        return known.get(name) or MagicMock()


class _HollowFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of vLLM, and its tests' helpers, before the true ones are found."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] == "vllm" or name == "tests.utils":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Hollow(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return


def _tokenizer(*args: Any, **kwargs: Any) -> Any:
    import transformers

    path = Path(os.environ["SUITE_MODEL"])
    more = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    return transformers.AutoTokenizer.from_pretrained(path.parent if more else path, **more)


class _ModelConfig:
    """What tests ask of a model's configuration."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        return

    def get_vocab_size(self) -> int:
        """How many tokens the served model has."""
        return len(_tokenizer())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what asks no server."""
    asking = [item for item in items if SERVING_FIXTURES & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=[item for item in items if item not in asking])
    items[:] = asking


sys.meta_path.insert(0, _HollowFinder())
