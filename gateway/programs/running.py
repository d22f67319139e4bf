"""A request that a program answers: found, narrowed, started."""

from __future__ import annotations

import uuid
from dataclasses import replace

from extensions.errors import ArgumentsInvalid, ProgramInvalid
from extensions.journal.journal import Journal
from extensions.programs.capabilities import capabilities, check_needs
from extensions.programs.doors import Inbox
from extensions.programs.limits import ProgramLimits
from extensions.programs.program import Program
from extensions.programs.request import ProgramRequest
from extensions.programs.run import ProgramRun
from extensions.programs.versions import read_reference
from extensions.runtime import Runtime
from gateway.errors import BadRequest
from gateway.prefixes.asking import Asker, key_id_of
from gateway.prefixes.requested import RequestedPrefix
from gateway.programs.finding import ProgramFinder
from gateway.programs.live import LivePrograms
from gateway.programs.work import ProgramWork
from gateway.programs.worlds import WorldMaker
from gateway.runs.doors import Doors
from gateway.schemas.base import WireModel
from gateway.schemas.extensions import ExtensionFields
from gateway.tenancy.payer import Payer

MODEL_PREFIX = "ext:"
"""A model of this name and a program's is that program on the served model, for clients that send no other fields."""

_NOT_PARAMS = frozenset(
    {"model", "messages", "prompt", "tools", "stream", "stream_options", "extension", "cache_salt", "request_id"}
    | {"priority", "user", "service_tier", "input", "instructions", "store", "background", "conversation", "metadata"}
    | {"previous_response_id", "include", "safety_identifier", "prompt_cache_key"}
)
"""Fields of requests that say nothing of how to generate."""


def new_run_id() -> str:
    """The id of a run, which nobody can guess."""
    return f"run_{uuid.uuid4().hex}"


class ProgramStarter:
    """Starts programs for requests.

    Args:
        runtime: Where they run.
        finder: Which there are.
        worlds: What they reach beyond the model.
        doors: What they reach of each other; closed with this.
        live: Told of those that run; closed with this.

    Attributes:
        doors: See above.
        live: See above.
    """

    def __init__(
        self, runtime: Runtime, finder: ProgramFinder, worlds: WorldMaker, doors: Doors, live: LivePrograms
    ) -> None:
        self._runtime = runtime
        self._finder = finder
        self._worlds = worlds
        self.doors = doors
        self.live = live

    @property
    def finder(self) -> ProgramFinder:
        """Which programs there are."""
        return self._finder

    async def start(
        self,
        body: WireModel,
        fields: ExtensionFields,
        owner: str,
        given: ProgramRequest,
        *,
        salt: str,
        payer: Payer | None = None,
        run_id: str = "",
        inbox: Inbox | None = None,
        journal: Journal | None = None,
    ) -> ProgramWork:
        """Starts the program that a request asks for.

        Args:
            body: The request.
            fields: Its `extension`.
            owner: Whose programs are known, and who pays.
            given: What the script is to see of the request; arguments, parameters and id are filled in here.
            salt: Prefix pages are shared only among contexts of the same salt.
            payer: Told at the end what was used.
            run_id: Of the run; a new one if left out.
            inbox: What the client says to it while it runs.
            journal: Where it is written down, so that it can be gone on with.

        Raises:
            ArgumentsInvalid: Its name, arguments or limits are wrong; `param` is the path in the body.
            NotFound: Nothing of its name is here.
            ProgramInvalid: It cannot run.
            SandboxUnavailable: There is no process to run it in.
            EngineStopped: No engine is there.
        """
        if getattr(body, "n", 1) != 1:
            raise BadRequest("A program gives one answer: 'n' must be 1. Send a number in 'extension.args'.", "n")
        params = body.model_dump(mode="json", exclude_unset=True, exclude=set(_NOT_PARAMS))
        try:
            return await self.begin(
                fields,
                owner,
                replace(given, params=params),
                salt=salt,
                payer=payer,
                run_id=run_id or new_run_id(),
                inbox=inbox,
                journal=journal,
            )
        except ProgramInvalid as error:
            error.param = "extension.name" if fields.source is None else "extension.source"
            raise
        except ArgumentsInvalid as error:
            if not error.param.startswith("extension."):
                error.param = f"extension.{error.param}"
            raise

    async def begin(
        self,
        fields: ExtensionFields,
        owner: str,
        given: ProgramRequest,
        *,
        salt: str,
        payer: Payer | None,
        run_id: str,
        inbox: Inbox | None,
        requested: RequestedPrefix | None = None,
        journal: Journal | None = None,
    ) -> ProgramWork:
        """Starts a program; see `start`. `param` of what it raises begins with the name of one of the fields.

        Args:
            fields: Which one, and how it is run.
            owner: Whose programs are known, and who pays.
            given: What the script is to see of the request; arguments and id are filled in here.
            salt: Prefix pages are shared only among contexts of the same salt.
            payer: Told at the end what was used.
            run_id: Of the run.
            inbox: What the client says to it while it runs.
            requested: The prefix that it is there to make; see `RequestedPrefix`.
            journal: Where it is written down, so that it can be gone on with.

        Raises:
            PermissionDenied: The key that pays may not run programs.
        """
        if payer is not None:
            payer.require("programs")
        program = await self._finder.find(fields, owner)
        asked = replace(given, args=fields.args, id=run_id, strict_path=fields.strict_path, trace=fields.trace)
        run = await self.run(
            program,
            asked,
            owner,
            salt=salt,
            payer=payer,
            limits=self._runtime.programs.limits.narrowed(fields.limits),
            inbox=inbox,
            requested=requested,
            journal=journal,
        )
        return ProgramWork(run, payer, model=given.model)

    async def run(
        self,
        program: Program,
        given: ProgramRequest,
        owner: str,
        *,
        salt: str,
        payer: Payer | None,
        limits: ProgramLimits,
        inbox: Inbox | None,
        requested: RequestedPrefix | None = None,
        journal: Journal | None = None,
        age_s: float = 0.0,
    ) -> ProgramRun:
        """Has a program run.

        Args:
            program: Which.
            given: What it answers.
            owner: Who pays.
            salt: Prefix pages are shared only among contexts of the same salt.
            payer: Told what its tools use.
            limits: What it may use.
            inbox: What the client says to it while it runs.
            requested: The prefix that it is there to make; see `RequestedPrefix`.
            journal: Where it is written down, so that it can be gone on with.
            age_s: Seconds since it was first begun, of one that is gone on with.
        """
        asker = Asker(owner=owner, salt=salt, key_id=key_id_of(payer), program=program.digest)
        world = self._worlds.world(asker=asker, run_id=given.id, model=given.model, payer=payer, requested=requested)
        run = await self._runtime.run_program(
            program,
            given,
            limits=limits,
            account=owner,
            salt=salt,
            world=self.doors.open(world, owner, inbox),
            adapter=self._runtime.info.adapter_of(given.model),
            journal=journal,
            age_s=age_s,
        )
        self.live.add(run, owner)
        return run

    def check_needs(self, program: Program, owner: str) -> None:
        """Checks that what a program says it needs is there for the programs of an owner, if they are detached.

        Raises:
            CapabilityMissing: It is not.
            EngineStopped: No engine is there.
        """
        if not program.needs:
            return
        asker = Asker(owner=owner, salt="", key_id="", program=program.digest)
        world = self.doors.open(self._worlds.world(asker=asker, run_id="", model=""), owner, None)
        has_inbox = ["inbox"] if self.doors.bells is not None else []
        check_needs(program.needs, [*capabilities(self._runtime.info, world), *has_inbox])

    async def aclose(self) -> None:
        """Ends all programs. Idempotent."""
        await self._runtime.aclose()
        await self._finder.aclose()
        await self.doors.aclose()
        await self.live.aclose()


def asked_program(model: str | None, extension: ExtensionFields | None) -> ExtensionFields | None:
    """Which script answers a request, by its `extension` or by its model's name; None if the model does.

    Raises:
        BadRequest: It asks for two, or the name is too long.
    """
    if model is None or not model.startswith(MODEL_PREFIX):
        return None if extension is not None and extension.sampler is not None else extension
    if extension is not None:
        raise BadRequest("'model' names a program already; leave 'extension' out, or name a model.", "extension")
    name = model.removeprefix(MODEL_PREFIX)
    read_reference(name, "model")
    return ExtensionFields(name=name)
