"""Adapters that passes bring for their own rows, as the engine takes them in."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import torch

from engine.adapters.shelf import AdapterShelf
from engine.adapters.sites import put_together, site_shapes
from engine.adapters.table import NO_ADAPTER, AdapterPlace
from engine.errors import InvalidRequest
from engine.models.config import ModelConfig
from engine.request import LanePass, SiteChange

if TYPE_CHECKING:
    from engine.models.late import LateDecoder

MAX_CHANGES = 16
"""Sites that one lane changes."""


class PassAdapters:
    """Puts them together.

    Args:
        shelf: Where steps find them.
        config: Of the model.
        device: Where steps are computed.
        late: What computes them, where its weights are loaded for the first of them.

    Attributes:
        shapes: Numbers that go into each site and come out of it, by name.
    """

    def __init__(
        self, shelf: AdapterShelf, config: ModelConfig, device: torch.device, late: LateDecoder | None = None
    ) -> None:
        self.shapes = site_shapes(config)
        self._shelf = shelf
        self._config = config
        self._device = device
        self._late = late

    @property
    def is_ready(self) -> bool:
        """Whether there is nothing to prepare."""
        return self._late is None or self._late.is_ready

    def prepare(self) -> Future[None] | None:
        """Has ready what computes rows with adapters, beside the steps; None if there is nothing to wait for."""
        return None if self._late is None else self._late.prepare()

    def place(self, base: str, changes: Sequence[SiteChange]) -> AdapterPlace:
        """The adapter of a lane's rows; there as long as somebody holds the place.

        Args:
            base: Name of the adapter of its context; empty for none.
            changes: What the pass says of sites.

        Raises:
            InvalidRequest: It cannot be.
        """
        loaded = {one.name: one for one in self._shelf.loaded}
        adapter = put_together(loaded.get(base), changes, loaded, self._config, self._device)
        return AdapterPlace(self._shelf.put(adapter), adapter.digest, adapter)


def row_adapters(adapters: PassAdapters | None, passes: Sequence[LanePass], bases: Sequence[str]) -> list[AdapterPlace]:
    """The adapters of the rows of each lane of a pass; none for those that have that of their context.

    Args:
        adapters: Puts them together; None where steps have no adapters.
        passes: What is wanted of each lane.
        bases: Names of the adapters of their contexts.

    Raises:
        InvalidRequest: One cannot be, or there are none at all.
    """
    if not any(lane.changes for lane in passes):
        return []
    if adapters is None:
        raise InvalidRequest("the steps of this engine have no adapters", "adapter")
    found = []
    for lane, base in zip(passes, bases, strict=True):
        if len(lane.changes) > MAX_CHANGES:
            raise InvalidRequest(f"a lane changes {len(lane.changes)} sites, at most {MAX_CHANGES} can be", "adapter")
        if lane.changes and lane.shape is None:
            raise InvalidRequest("rows with an adapter of their own have a shape", "adapter")
        found.append(adapters.place(base, lane.changes) if lane.changes else NO_ADAPTER)
    return found
