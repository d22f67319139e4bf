"""The store of one `wye serve`: a private redis-server for as long as it runs, unless another is named."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gateway.settings import Settings
from gateway.state.embedded import DirectoryInUse, EmbeddedRedis, EmbeddedRedisError, find_server
from gateway.state.probe import check_store, check_tenants


@contextlib.contextmanager
def private_redis(
    settings: Settings, directory: Path | None, note: Callable[[str], None]
) -> Iterator[EmbeddedRedis | None]:
    """Runs a redis-server, or none where `redis_url` names one or none can be run; the latter is noted, not raised.

    Args:
        settings: Of the gateway.
        directory: Where to keep state, if `state_dir` is not set; None with neither runs nothing.
        note: Told what people should know.

    Raises:
        UnfitStore: The Redis of `redis_url` is there and cannot be used.
    """
    directory = Path(settings.state_dir).expanduser() if settings.state_dir else directory
    if settings.redis_url:
        for warning in check_store(settings.redis_url, keeps_accounts=bool(settings.admin_key)):
            note(warning)
        _warn_of_tenants(settings, settings.redis_url, note)
    if settings.redis_url or directory is None:
        yield None
        return
    with contextlib.ExitStack() as held:
        redis = None
        try:
            redis = _start(settings, directory, note, held)
        except EmbeddedRedisError as error:
            note(str(error))
        if redis is not None:
            _warn_of_tenants(settings, redis.url, note)
        try:
            yield redis
        finally:
            if redis is not None:
                redis.stop()


def _warn_of_tenants(settings: Settings, url: str, note: Callable[[str], None]) -> None:
    if not settings.admin_key:
        for warning in check_tenants(url, needs_key=bool(settings.api_keys)):
            note(warning)


def _start(
    settings: Settings, directory: Path, note: Callable[[str], None], held: contextlib.ExitStack
) -> EmbeddedRedis:
    program = find_server(settings.redis_server)
    redis = EmbeddedRedis(directory, program, note)
    try:
        redis.start()
    except DirectoryInUse as error:
        note(f"{error}: what this one stores ends with it; set WYE_STATE_DIR to keep it")
        own = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="wye-state-", ignore_cleanup_errors=True)))
        redis = EmbeddedRedis(own, program, note)
        redis.start()
    return redis
