"""The source files and what each one is made from."""

from __future__ import annotations

import re
from pathlib import Path

from engine.native.building.cache import digest
from engine.native.building.flags import in_link_order

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def source_files(directory: Path) -> list[Path]:
    """The files to compile, in the order in which they are linked."""
    return in_link_order(list(directory.glob("*.cpp")))


def with_includes(source: Path) -> list[Path]:
    """A file and all of ours that it includes, directly or not, in a fixed order."""
    found = {source}
    unread = [source]
    while unread:
        file = unread.pop()
        for name in _INCLUDE.findall(file.read_text(encoding="utf-8")):
            included = file.parent / name
            if included not in found and included.is_file():
                found.add(included)
                unread.append(included)
    return sorted(found)


def source_digest(*files: Path) -> str:
    """Changes whenever one of the files does; empty for no files."""
    return digest(*(part for file in files for part in (file.name, file.read_bytes()))) if files else ""


def whole_digest(directory: Path) -> str:
    """The same for all files that the module is made from."""
    sources = source_files(directory)
    return source_digest(*sorted({file for source in sources for file in with_includes(source)}))
