"""A local HTTP server that answers as the hub does, as far as pulling a model goes, and that can be made to fail."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE_BYTES = 4096
"""Files of at least this size are listed with a SHA-256, as the hub does for its large files."""


@dataclass
class Repository:
    """What the hub holds of one repository.

    Attributes:
        files: Contents by path.
        revisions: Commits by branch or tag.
        token: Token that opens a gated repository; None for an open one.
        listed_sha256: Wrong digests to announce, by path.
    """

    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    token: str | None = None
    listed_sha256: dict[str, str] = field(default_factory=dict)


@dataclass
class HubStandIn:
    """The running server.

    Attributes:
        endpoint: Its address.
        repositories: What it holds, by `org/name`.
        requests: Lines `METHOD path` and the Range asked for, in order.
        break_after: Cut the body of a file's GET after so many bytes, once, then fail until healed, by path.
        stall_after: Stop sending the body after so many bytes until `release` is set, by path.
        down: Answer everything with 503.
    """

    endpoint: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    break_after: dict[str, int] = field(default_factory=dict)
    stall_after: dict[str, int] = field(default_factory=dict)
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    broken: set[str] = field(default_factory=set)
    down: bool = False

    def ranges_of(self, path: str) -> list[str | None]:
        """The Range header of every GET of a file."""
        return [asked for line, asked in self.requests if line.startswith("GET ") and line.endswith(f"/{path}")]

    def heal(self) -> None:
        """Answers properly again."""
        self.break_after.clear()
        self.broken.clear()
        self.stall_after.clear()
        self.release.set()
        self.down = False


@contextmanager
def run_hub() -> Iterator[HubStandIn]:
    """Runs the server on a free port of the loopback address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    hub = HubStandIn(endpoint=f"http://127.0.0.1:{server.server_port}")
    _Handler.hubs[server.server_port] = hub
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
        del _Handler.hubs[server.server_port]


class _Handler(BaseHTTPRequestHandler):
    hubs: dict[int, HubStandIn] = {}  # noqa: RUF012  # one server a port; the class is made before the server
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubStandIn:
        return self.hubs[self.connection.getsockname()[1]]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Tests read `requests` instead."""

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((f"{self.command} {path}", self.headers.get("Range")))
        if self.hub.down:
            return self._fail(503, "", "down for maintenance")
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._fail(401, "RepoNotFound", "Repository not found")
        rest = parts[4:] if api else parts[2:]
        revision = rest[1] if len(rest) > 1 else "main"
        commit = revision if revision in repository.revisions.values() else repository.revisions.get(revision)
        if commit is None:
            return self._fail(404, "RevisionNotFound", "Invalid rev id")
        if api and rest[:1] == ["tree"]:
            return self._json([self._entry(repository, file) for file in repository.files])
        if api:
            siblings = [{"rfilename": file} for file in repository.files]
            return self._json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "gated": False})
        if repository.token and self.headers.get("Authorization") != f"Bearer {repository.token}":
            return self._fail(403, "GatedRepo", "Access to this repository is restricted")
        return self._send_file(repository, "/".join(rest[2:]), commit, with_body=with_body)

    def _entry(self, repository: Repository, path: str) -> dict[str, object]:
        content = repository.files[path]
        entry: dict[str, object] = {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
        entry["path"] = path
        if len(content) >= LARGE_BYTES:
            entry["lfs"] = {"oid": self._digest(repository, path), "size": len(content), "pointerSize": 134}
        return entry

    def _digest(self, repository: Repository, path: str) -> str:
        return repository.listed_sha256.get(path) or hashlib.sha256(repository.files[path]).hexdigest()

    def _send_file(self, repository: Repository, path: str, commit: str, *, with_body: bool) -> None:
        content = repository.files.get(path)
        if content is None:
            return self._fail(404, "EntryNotFound", "Entry not found")
        if with_body and path in self.hub.broken:
            return self._fail(500, "", "storage failure")
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{self._digest(repository, path)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if with_body:
            self._send_body(path, content[start:])
        return None

    def _send_body(self, path: str, content: bytes) -> None:
        if path in self.hub.break_after:
            self.wfile.write(content[: self.hub.break_after.pop(path)])
            self.wfile.flush()
            self.hub.broken.add(path)
            self.close_connection = True
            return
        if path in self.hub.stall_after:
            cut = self.hub.stall_after.pop(path)
            self.wfile.write(content[:cut])
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.release.wait(60)
            content = content[cut:]
        try:
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()
