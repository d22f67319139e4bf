"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engine.sources.options import PullOptions
from engine.sources.store import ModelStore

DEFAULT_HOME = Path("~/.cache/wye")
DEFAULT_MODEL = "smollm2-135m"

HomeOption = Annotated[
    Path,
    typer.Option("--home", envvar="WYE_HOME", help="Directory of the model store.", show_default=str(DEFAULT_HOME)),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TokenOption = Annotated[
    str | None,
    typer.Option(envvar="HF_TOKEN", show_envvar=True, help="Token for gated and private Hugging Face repositories."),
]
EndpointOption = Annotated[
    str | None, typer.Option(envvar="HF_ENDPOINT", help="Address of the Hugging Face hub, or of a mirror.")
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", envvar="HF_HUB_OFFLINE", help="Contact nobody; take only what is here already.")
]


def open_store(home: Path) -> ModelStore:
    """The store below a directory that may begin with `~`."""
    return ModelStore(home.expanduser())


def pull_options(token: str | None, endpoint: str | None, offline: bool) -> PullOptions:
    """Options of a pull; empty text from the environment counts as nothing."""
    return PullOptions(hub_token=token or None, hub_endpoint=endpoint or None, offline=offline)
