"""Histories that outlive who made them: what it takes to make one again, and contexts that go on from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.client import EngineClient
from engine.contexts.edits import Edit
from engine.text.model import TextModel
from extensions.context_link import ContextLink
from extensions.live_context import LiveContext


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that the KV of a history depends on, besides the model.

    Attributes:
        token_ids: The history.
        edits: Which of its tokens do not see which others.
        adapter: Name of the adapter that computes it; empty for the model alone.
    """

    token_ids: Sequence[int]
    edits: tuple[Edit, ...] = ()
    adapter: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A context that goes on from an export.

    Attributes:
        live: The context; whoever asked for it releases it.
        num_computed: Tokens whose KV it has; the others are computed when it is used.
        export_id: Name of the export in the engine.
    """

    live: LiveContext
    num_computed: int
    export_id: str = ""

    @property
    def is_warm(self) -> bool:
        """Nothing of it has to be computed again."""
        return is_warm(self.num_computed, self.live.length)


def is_warm(num_computed: int, length: int) -> bool:
    """Whether nothing of a history has to be computed again: its last token is anyway, for what follows it."""
    return num_computed >= max(length - 1, 1)


async def import_context(
    engine: EngineClient, text: TextModel, recipe: Recipe, export_id: str, *, account: str, salt: str
) -> Imported:
    """A context with the history of an export, and with its KV where the engine still has that.

    Args:
        engine: Where it is held.
        text: The model's text side.
        recipe: Of the export.
        export_id: Its name in the engine.
        account: Opaque label that the KV meter charges for the new context.
        salt: Prefix pages are shared only among contexts of the same salt.

    Raises:
        EngineStopped: No engine is there.
    """
    link = ContextLink(engine, account=account, salt=salt, adapter=recipe.adapter)
    return await _imported(engine, text, recipe, export_id, link)


async def import_like(empty: LiveContext, recipe: Recipe, export_id: str) -> Imported:
    """The same for whom an empty context of the recipe's adapter was opened, on its engine; that is released.

    Raises:
        EngineStopped: No engine is there.
    """
    engine, text, own = empty._engine, empty._text, empty._link
    link = ContextLink(engine, account=own.account, salt=own.salt, adapter=recipe.adapter)
    empty.release()
    return await _imported(engine, text, recipe, export_id, link)


async def _imported(
    engine: EngineClient, text: TextModel, recipe: Recipe, export_id: str, link: ContextLink
) -> Imported:
    link.take(export_id, len(recipe.token_ids))
    live = LiveContext(engine, text, recipe.token_ids, link=link, edits=recipe.edits)
    try:
        info = await link.describe()
        if info.length != len(recipe.token_ids):
            link.release()
            return Imported(live=live, num_computed=0, export_id=export_id)
        return Imported(live=live, num_computed=info.num_computed, export_id=export_id)
    except BaseException:
        live.release()
        raise
