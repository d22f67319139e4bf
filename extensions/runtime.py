"""The gateway's one door to a model."""

from __future__ import annotations

from collections.abc import Sequence

from engine.client import EngineClient
from engine.request import EngineInfo
from engine.stats import EngineStats
from engine.text.model import TextModel
from extensions.context import Context


class Runtime:
    """One engine and the text side of its model. Safe for many concurrent users of one event loop.

    It owns neither: whoever made the engine client closes it.

    Attributes:
        engine: The engine's door.
        text: Tokenizer and chat template of the same model.
    """

    def __init__(self, engine: EngineClient, text: TextModel) -> None:
        self.engine = engine
        self.text = text

    def context(self, prompt_ids: Sequence[int], *, account: str = "", salt: str = "") -> Context:
        """Starts a token history. Costs nothing until it generates.

        Args:
            prompt_ids: The history so far.
            account: Opaque label that the engine's KV meter charges.
            salt: Prefix pages are shared only among contexts of the same salt.
        """
        return Context(self.engine, self.text, prompt_ids, account=account, salt=salt)

    @property
    def info(self) -> EngineInfo:
        """What the engine is. Raises `EngineStopped` while none is connected."""
        return self.engine.info

    @property
    def stats(self) -> EngineStats:
        """The newest numbers the engine sent."""
        return self.engine.stats

    @property
    def is_ready(self) -> bool:
        """True while an engine is connected and takes requests."""
        return self.engine.is_ready
