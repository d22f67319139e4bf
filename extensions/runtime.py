"""The gateway's one door to a model."""

from __future__ import annotations

from collections.abc import Sequence

from engine.client import EngineClient
from engine.request import EngineInfo, Pooling
from engine.stats import EngineStats
from engine.text.model import TextModel
from extensions.context import Context
from extensions.embedding import Embedding, embed
from extensions.live_context import LiveContext


class Runtime:
    """One engine and the text side of its model. Safe for many concurrent users of one event loop.

    It owns neither: whoever made the engine client closes it.

    Attributes:
        engine: The engine's door.
        text: Tokenizer and chat template of the same model.
        pooling: Which hidden states make an embedding.
    """

    def __init__(self, engine: EngineClient, text: TextModel, pooling: Pooling = Pooling.MEAN) -> None:
        self.engine = engine
        self.text = text
        self.pooling = pooling

    def context(self, prompt_ids: Sequence[int], *, account: str = "", salt: str = "") -> Context:
        """Starts a token history. Costs nothing until it generates.

        Args:
            prompt_ids: The history so far.
            account: Opaque label that the engine's KV meter charges.
            salt: Prefix pages are shared only among contexts of the same salt.
        """
        return Context(self.engine, self.text, prompt_ids, account=account, salt=salt)

    async def embed(
        self, prompt_ids: Sequence[int], *, account: str = "", salt: str = "", priority: int = 0
    ) -> Embedding:
        """Embeds one prompt; see `extensions.embedding.embed`."""
        return await embed(self.engine, prompt_ids, self.pooling, account=account, salt=salt, priority=priority)

    def open_context(self, token_ids: Sequence[int] = (), *, account: str = "", salt: str = "") -> LiveContext:
        """Starts a history whose KV is kept between generations, until it is released. Costs nothing by itself.

        Args:
            token_ids: The history so far.
            account: Opaque label that the engine's KV meter charges.
            salt: Prefix pages are shared only among contexts of the same salt.

        Raises:
            ValueError: An id is outside of the vocabulary.
        """
        return LiveContext(self.engine, self.text, token_ids, account=account, salt=salt)

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
