"""Puts together what works on batches in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.types import ASGIApp

from extensions.runtime import Runtime
from gateway.batches.calls import LocalCalls
from gateway.batches.making import Tools
from gateway.batches.runner import BatchRunner
from gateway.errors import ErrorReply, to_reply
from gateway.lifecycle import Lifecycle
from gateway.models import ServedModels
from gateway.settings import Settings
from gateway.state.batches import BatchStore
from gateway.state.files import FileBounds, FileStore
from gateway.state.link import connect


def build_runner(
    settings: Settings,
    app: ASGIApp,
    *,
    url: str,
    files_dir: Path | None,
    lifecycle: Lifecycle,
    runtime: Runtime,
    models: ServedModels,
) -> BatchRunner | None:
    """What works on batches; None where there is no Redis or no directory.

    Args:
        settings: How to serve.
        app: Answers the requests of batches.
        url: Of a Redis; empty if there is none.
        files_dir: Where files are kept, unless the settings say.
        lifecycle: Told of batches in work.
        runtime: The door to the model.
        models: Its names.
    """
    directory = Path(settings.files_dir).expanduser() if settings.files_dir else files_dir
    if not url or directory is None:
        return None
    redis = connect(url)

    def to_error(error: Exception) -> ErrorReply:
        return to_reply(error, max_message_chars=settings.max_message_chars)

    tools = Tools(
        settings=settings,
        records=BatchStore(redis, settings.max_batches),
        files=FileStore(redis, directory, FileBounds(count=settings.max_files, bytes=settings.max_files_bytes)),
        calls=LocalCalls(app),
        slots=asyncio.Semaphore(settings.batch_lines),
        resolve=models.resolve,
        is_ready=lambda: runtime.is_ready,
        to_reply=to_error,
    )
    return BatchRunner(tools, lifecycle, redis)
