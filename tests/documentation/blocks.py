"""Documented examples: found in the pages, run, and compared with the output shown under them.

A fenced `bash` or `python` block is an example. The fenced block that follows `<!-- output -->` is what it must print;
`...` stands for anything within the output. An example that cannot run in a test (it needs a GPU, say) follows
`<!-- not run: REASON -->`. Each example runs on its own, in the checkout, with `.venv/bin` on the path; but one that
follows `<!-- client: NAME -->` runs where that library is installed, in `tests/e2e/clients`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from docs.pages import ROOT, pages

DOCUMENTED_PORT = 8000
TIMEOUT_S = 240

_FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^>]*) -->\n+)?^```(?P<kind>[a-z]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_NOT_RUN = "not run: "
_CLIENT = "client: "


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One block of a page.

    Attributes:
        page: Path relative to the checkout.
        line: Where its text begins.
        kind: `bash` or `python`.
        text: Its text.
        output: What it must print, or None if the page does not show it.
        not_run: Why it is not run, or None.
    """

    page: str
    line: int
    kind: str
    text: str
    output: str | None = None
    not_run: str | None = None

    @property
    def id(self) -> str:
        """Where to find it."""
        return f"{self.page}:{self.line}"


def examples() -> Iterator[Example]:
    """Every example of every page."""
    for path in pages():
        yield from examples_of(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))


def examples_of(text: str, page: str) -> list[Example]:
    """The examples of one page.

    Raises:
        ValueError: An output belongs to no example.
    """
    found: list[Example] = []
    for match in _FENCE.finditer(text):
        note = (match["note"] or "").strip()
        line = text.count("\n", 0, match.start("text")) + 1
        if note == "output":
            if not found or found[-1].output is not None:
                raise ValueError(f"{page}:{line}: output of which example?")
            found[-1] = replace(found[-1], output=match["text"])
        elif match["kind"] in ("bash", "python") and not note.startswith(_CLIENT):
            not_run = note.removeprefix(_NOT_RUN) if note.startswith(_NOT_RUN) else None
            found.append(Example(page=page, line=line, kind=match["kind"], text=match["text"], not_run=not_run))
    return found


def client_examples(text: str) -> dict[str, str]:
    """The examples of a page that are of other libraries, by the libraries' names."""
    notes = ((match, (match["note"] or "").strip()) for match in _FENCE.finditer(text))
    return {note.removeprefix(_CLIENT): match["text"] for match, note in notes if note.startswith(_CLIENT)}


def run_example(example: Example, *, port: int, environment: Mapping[str, str]) -> str:
    """Runs an example against a server on `port` and returns what it printed.

    Raises:
        AssertionError: It failed; the text holds all it printed.
    """
    source = _with_port(example.text, port)
    command = [sys.executable, "-c", source] if example.kind == "python" else ["bash", "-euo", "pipefail", "-c", source]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{example.id} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def matches(shown: str, printed: str) -> bool:
    """True if the page's output is what was printed, apart from white space and what `...` stands for."""
    pieces = [re.escape(" ".join(piece.split())) for piece in shown.split("...")]
    pattern = r"\s*.*?\s*".join(pieces)
    return re.fullmatch(pattern, " ".join(printed.split()), re.DOTALL) is not None


def expected(example: Example, port: int) -> str | None:
    """The output shown, with the server's port in place of the documented one."""
    return None if example.output is None else _with_port(example.output, port)


def _with_port(text: str, port: int) -> str:
    return re.sub(rf"(?<=127\.0\.0\.1:){DOCUMENTED_PORT}\b", str(port), text)
