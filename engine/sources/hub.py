"""Models of the Hugging Face hub, through `huggingface_hub` (imported when first needed).

The list of files, their sizes and digests come first; the files are then fetched one by one, each resumable.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.sources.assembly import bring_file
from engine.sources.errors import DamagedModel, SourceNotFound, SourceUnavailable
from engine.sources.hub_errors import hub_errors
from engine.sources.inspection import check_weights_offered, is_model_file
from engine.sources.manifest import is_inside
from engine.sources.options import PullOptions
from engine.sources.progress import Progress, watch_directory
from engine.sources.reference import HubReference

if TYPE_CHECKING:
    from huggingface_hub import HfApi


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFile:
    """One file of a repository at one commit.

    Attributes:
        path: Relative to the repository.
        size_bytes: Its length.
        sha256: Hex digest, known for large files only.
    """

    path: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class HubSnapshot:
    """What is to be fetched.

    Attributes:
        commit: Full commit id.
        files: The files that belong to the model.
    """

    commit: str
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


def find_snapshot(ref: HubReference, options: PullOptions) -> HubSnapshot:
    """Asks the hub for the commit behind a revision and for the model's files.

    Raises:
        SourceNotFound: No such repository, revision or file.
        AccessDenied: Gated or private.
        UnsupportedModel: No weights that we read.
        SourceUnavailable: The hub does not answer, or we are offline.
    """
    with hub_errors(ref, options):
        api = _api(options)
        commit = api.model_info(ref.repo, revision=ref.revision).sha
        if commit is None:
            raise SourceUnavailable(f"the hub named no commit for {ref}")
        entries = api.list_repo_tree(ref.repo, recursive=True, revision=commit)
        files = [_hub_file(entry) for entry in entries if hasattr(entry, "size")]
    return HubSnapshot(commit=commit, files=_choose_files(ref, files))


def fetch_snapshot(
    ref: HubReference, snapshot: HubSnapshot, directory: Path, progress: Progress, options: PullOptions
) -> None:
    """Puts a snapshot's files into `directory`; what an earlier attempt left there is continued.

    Raises:
        AccessDenied: The files are gated, though their list is not.
        SourceUnavailable: The connection broke; calling again continues.
    """
    with (
        hub_errors(ref, options),
        watch_directory(progress, f"downloading {ref}", directory, snapshot.size_bytes),
    ):
        for file in snapshot.files:
            if not _has_size(directory / file.path, file.size_bytes):
                _bring_file(ref.repo, snapshot.commit, file, directory, options)


def find_cached(ref: HubReference, options: PullOptions) -> tuple[str, Path]:
    """Offline: looks for the snapshot in the hub client's own cache.

    Returns:
        Commit, and the folder that holds its files.

    Raises:
        SourceUnavailable: It is not there, or not all of it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            ref.repo,
            revision=ref.revision,
            cache_dir=options.hub_cache,
            allow_patterns=[ref.file] if ref.file else None,
            local_files_only=True,
        )
    except LocalEntryNotFoundError as error:
        raise SourceUnavailable(
            f"{ref} is not here yet, neither stored nor in the hub client's cache, and offline mode forbids to fetch it"
        ) from error
    return Path(folder).name, Path(folder)


def _api(options: PullOptions) -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=options.hub_endpoint, token=options.hub_token, library_name="wye")


def _bring_file(repo: str, commit: str, file: HubFile, directory: Path, options: PullOptions) -> None:
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repo, file.path, cache_dir=options.hub_cache, revision=commit)
    if isinstance(cached, str) and _has_size(Path(cached), file.size_bytes):
        bring_file(Path(cached), directory / file.path)
    else:
        _download_file(repo, commit, file, directory, options)


def _download_file(repo: str, commit: str, file: HubFile, directory: Path, options: PullOptions) -> None:
    """Fetches one file beside its final name, from where an earlier attempt stopped, and renames it when it is whole.

    `hf_hub_download` of today starts every unfinished file anew in a new process; its own transfer function does not.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented there, not listed

    target = directory / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    if part.exists() and part.stat().st_size > file.size_bytes:
        part.unlink()
    with open(part, "ab") as output:
        http_get(
            hf_hub_url(repo, file.path, revision=commit, endpoint=options.hub_endpoint),
            output,
            resume_size=output.tell(),
            headers=build_hf_headers(token=options.hub_token, library_name="wye"),
            expected_size=file.size_bytes,
            tqdm_class=_hidden_bar(),
        )
    if not _has_size(part, file.size_bytes):
        part.unlink()
        raise SourceUnavailable(f"{file.path} of {repo} arrived with another size than announced; pull again")
    os.replace(part, target)


def _hidden_bar() -> Any:
    from huggingface_hub.utils.tqdm import tqdm

    class HiddenBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]  # has no types

    return HiddenBar


def _has_size(path: Path, size_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == size_bytes


def _hub_file(entry: Any) -> HubFile:
    return HubFile(path=entry.path, size_bytes=entry.size, sha256=entry.lfs.sha256 if entry.lfs else None)


def _choose_files(ref: HubReference, files: list[HubFile]) -> tuple[HubFile, ...]:
    unsafe = [file.path for file in files if not is_inside(file.path)]
    if unsafe:
        raise DamagedModel(f"{ref} lists a file outside of itself: {unsafe[0]!r}")
    if ref.file is not None:
        chosen = tuple(file for file in files if file.path == ref.file)
        if not chosen:
            have = ", ".join(sorted(file.path for file in files if file.path.endswith(".gguf"))[:8]) or "none"
            raise SourceNotFound(f"{ref.repo} has no file {ref.file!r}; GGUF files there: {have}")
        return chosen
    check_weights_offered(str(ref), [file.path for file in files])
    return tuple(file for file in files if is_model_file(file.path))
