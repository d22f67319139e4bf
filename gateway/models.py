"""Names of the model that is served, and of the adapters that make other models of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from engine.request import EngineInfo
from gateway.errors import ModelNotFound


class ServedModels:
    """The names one model goes by, the first its own, the others aliases; and one name for each of its adapters."""

    def __init__(self, names: Sequence[str], adapters: Sequence[str] = ()) -> None:
        """Takes names.

        Raises:
            ValueError: The model has none, or an adapter has one of the model's.
        """
        if not names:
            raise ValueError("a served model needs a name")
        self.names = tuple(dict.fromkeys(names))
        self.adapters = tuple(dict.fromkeys(adapters))
        taken = next((name for name in self.adapters if name in self.names), None)
        if taken is not None:
            raise ValueError(f"the adapter {taken!r} has a name of the model; give it another")
        self._created = int(time.time())

    def resolve(self, name: str | None) -> str:
        """The name to answer with: the one asked for, or the model's own if none was.

        Raises:
            ModelNotFound: Nothing is served under that name.
        """
        if name is None:
            return self.names[0]
        if name not in self.names and name not in self.adapters:
            raise ModelNotFound(name)
        return name

    def body(self, name: str, info: EngineInfo | None) -> dict[str, Any]:
        """The model object of one name; without an engine its context length is not known.

        Raises:
            ModelNotFound: Nothing is served under that name.
        """
        return {
            "id": self.resolve(name),
            "object": "model",
            "created": self._created,
            "owned_by": "wye",
            "root": name if name in self.adapters else self.names[0],
            "parent": self.names[0] if name in self.adapters else None,
            "max_model_len": None if info is None else info.limit_tokens,
        }

    def list_body(self, info: EngineInfo | None) -> dict[str, Any]:
        """The list of all names."""
        return {"object": "list", "data": [self.body(name, info) for name in (*self.names, *self.adapters)]}
