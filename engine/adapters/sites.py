"""Adapters of single sites, put together for the rows of a pass.

A site is a projection, or the two of a feed-forward's beginning. What a pass says of a site takes the place of what the
adapter of its context says of it; everything else stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import torch

from engine.adapters.changes import Adapter, Change
from engine.adapters.expressions import expression_changes
from engine.adapters.projections import Projection, Site, projections
from engine.errors import InvalidRequest
from engine.models.config import ModelConfig
from engine.request import SiteChange

SITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "q": ("q_proj",),
        "k": ("k_proj",),
        "v": ("v_proj",),
        "o": ("o_proj",),
        "gate": ("gate_proj",),
        "up": ("up_proj",),
        "gate_up": ("gate_proj", "up_proj"),
        "down": ("down_proj",),
    }
)
"""Projections of each site."""


def site_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Numbers that go into each site and come out of it, for one row."""
    known = projections(config)
    found = {}
    for site, names in SITES.items():
        members = [known[name] for name in names]
        found[site] = members[0].num_inputs, sum(one.num_outputs for one in members)
    return found


def put_together(
    base: Adapter | None,
    changes: Sequence[SiteChange],
    loaded: Mapping[str, Adapter],
    config: ModelConfig,
    device: torch.device,
) -> Adapter:
    """The adapter of a pass's rows.

    Args:
        base: That of its context.
        changes: What is said of sites; later ones take the place of earlier ones.
        loaded: Adapters by name.
        config: Of the model.
        device: Where steps are computed.

    Raises:
        InvalidRequest: A site, layer or adapter is not there, or an expression cannot be.
    """
    layers: list[dict[Site, list[Change]]] = [
        {} if base is None else {site: list(found) for site, found in base.layers[layer].items()}
        for layer in range(config.num_layers)
    ]
    for change in changes:
        _put(change, layers, loaded, config, device)
    digest = hashlib.blake2b(msgspec.msgpack.encode(changes), digest_size=16)
    for named in (base, *(loaded[name] for name in sorted(loaded))):
        digest.update(b"" if named is None else named.digest.encode())
    return Adapter(name="", kind="site", digest=digest.hexdigest(), rank=0, layers=layers, is_behind_plain=base is None)


def _put(
    change: SiteChange,
    layers: list[dict[Site, list[Change]]],
    loaded: Mapping[str, Adapter],
    config: ModelConfig,
    device: torch.device,
) -> None:
    if change.site not in SITES:
        raise InvalidRequest(f"there is no site {change.site!r}; there are {', '.join(SITES)}", "adapter")
    known = projections(config)
    targets = [known[name] for name in SITES[change.site]]
    chosen = change.layers or range(len(layers))
    if any(not 0 <= layer < len(layers) for layer in chosen):
        raise InvalidRequest(f"layers are numbered from 0 to {len(layers) - 1}", "adapter")
    if change.program is None:
        found = _named(change, targets, chosen, loaded)
    else:
        found = expression_changes(change.program, change.site, targets, chosen, loaded, device)
    for layer in chosen:
        changed = layers[layer]
        for target in targets:
            changed[target.site] = [one for one in changed.get(target.site, ()) if not _overlap(one.projection, target)]
        for one in found.get(layer, ()):
            changed.setdefault(one.projection.site, []).append(one)


def _overlap(one: Projection, other: Projection) -> bool:
    return one.site == other.site and one.first < other.last and other.first < one.last


def _named(
    change: SiteChange, targets: Sequence[Projection], chosen: Sequence[int], loaded: Mapping[str, Adapter]
) -> dict[int, list[Change]]:
    """What a loaded adapter does at a site; nothing for the model alone."""
    if not change.adapter:
        return {}
    source = loaded.get(change.adapter)
    if source is None:
        raise InvalidRequest(f"there is no adapter {change.adapter!r}", "adapter")
    found = {
        layer: [one for one in source.layers[layer].get(targets[0].site, ()) if one.projection in targets]
        for layer in chosen
    }
    if not any(found.values()):
        raise InvalidRequest(f"the adapter {change.adapter!r} changes nothing at {change.site} there", "adapter")
    return found
