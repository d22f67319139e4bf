"""Errors of the layer between the gateway and the engine.

    ExtensionError
    ├── GenerationClosed          the generation was closed while somebody still waited for its next step
    └── ProgramError              a program and its run; each has a stable `code` and says if a retry can help
        ├── ProgramInvalid        the script's fault, found before it ran: each problem with line and column
        │   └── CapabilityMissing its header asks for what this server, or this run, does not have
        ├── ArgumentsInvalid      the caller's fault, found before it ran: `args` or `limits` are not what they must be
        ├── ScriptError           the script raised; its own traceback
        ├── ScriptLimitExceeded   the run was ended at a limit; says which, how much was used, how much is allowed
        ├── ScriptCrashed         the worker process died under it; everything the run held is released
        ├── RunCancelled          somebody closed the run while its end was awaited
        ├── ReplayDiverged        gone on with after a crash, the script did something else than before
        ├── NotResumable          it cannot be gone on with from where it was
        └── SandboxUnavailable    no worker can be started, or none became free; nothing was started

None of them harms any other run. Errors of the engine (`engine.errors`) pass through unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

CAPABILITY_MISSING = "capability_missing"
"""Code and rule of what a program needs and a server does not have."""


class ExtensionError(Exception):
    """Root of everything this package raises by itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class GenerationClosed(ExtensionError):
    """Someone else closed the generation; its engine work has ended and nothing more will come."""


class ProgramError(ExtensionError):
    """Something about a program.

    Attributes:
        code: Stable name of what happened.
        can_retry: The same again may succeed later.
    """

    code: str = "extension_error"
    can_retry: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnostic:
    """One problem of a script.

    Attributes:
        line: Of the script as it was sent, from 1.
        column: In characters, from 1.
        end_line: Where it ends.
        end_column: After its last character.
        message: For people.
        severity: Only errors keep a script from running.
        rule: Name of the rule, such as `invalid-argument-type`; empty if there is none.
    """

    line: int
    column: int
    message: str
    severity: Literal["error", "warning"] = "error"
    end_line: int = 0
    end_column: int = 0
    rule: str = ""

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


class ProgramInvalid(ProgramError):
    """The script cannot run as it stands.

    Attributes:
        diagnostics: Every problem that was found, in the order of lines.
        param: The caller's field that brought the script.
    """

    code = "program_invalid"
    param = "source"
    _said = "The program is not valid"

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        shown = "; ".join(str(one) for one in diagnostics[:3])
        rest = len(diagnostics) - 3
        super().__init__(f"{self._said}: {shown}{f' (and {rest} more)' if rest > 0 else ''}")
        self.diagnostics = tuple(diagnostics)


class CapabilityMissing(ProgramInvalid):
    """The script says in its header that it needs what is not there."""

    code = CAPABILITY_MISSING
    _said = "The program cannot run here"


class ArgumentsInvalid(ProgramError):
    """What came with the program does not fit it or this server.

    Attributes:
        param: Path of the field at fault, such as `args.n` or `limits.wall_s`.
    """

    code = "invalid_argument"

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptFrame:
    """One line of a script's traceback, outermost first.

    Attributes:
        line: Of the script as it was sent, from 1.
        column: In characters, from 1.
        function: Name of the function, `<module>` outside of any.
        source: The line's text.
    """

    line: int
    column: int
    function: str
    source: str


class ScriptError(ProgramError):
    """The script raised and did not catch.

    Attributes:
        code: `extension_error`, or that of the error of the server that it did not catch.
        kind: Class name of the exception inside the sandbox.
        reason: Its text.
        frames: Where, outermost first; lines of the script alone.
        cause: The server's own error, typed, where one was the reason.
    """

    def __init__(
        self,
        kind: str,
        reason: str,
        frames: Sequence[ScriptFrame] = (),
        *,
        code: str = "extension_error",
        cause: Exception | None = None,
    ) -> None:
        at = f" (line {frames[-1].line}, in {frames[-1].function})" if frames else ""
        super().__init__(f"The program raised {kind}: {reason}{at}" if reason else f"The program raised {kind}{at}")
        self.kind = kind
        self.reason = reason
        self.frames = tuple(frames)
        self.code = code
        self.cause = cause

    @property
    def traceback(self) -> str:
        """The traceback as Python writes it."""
        lines = ["Traceback (most recent call last):"]
        for frame in self.frames:
            lines.append(f'  File "main.py", line {frame.line}, in {frame.function}')
            if frame.source:
                lines.append(f"    {frame.source.strip()}")
        return "\n".join([*lines, f"{self.kind}: {self.reason}" if self.reason else self.kind])


class ScriptLimitExceeded(ProgramError):
    """The run was ended because it reached one of its limits; the script had no say.

    Attributes:
        limit: Name of the field of `ProgramLimits`, such as `exec_s`.
        used: What the run had used or asked for.
        allowed: What it was allowed.
    """

    code = "limit_exceeded"

    def __init__(self, limit: str, used: float, allowed: float) -> None:
        super().__init__(f"The program exceeded its limit {limit}: {used:g} used, {allowed:g} allowed")
        self.limit = limit
        self.used = used
        self.allowed = allowed


class ScriptCrashed(ProgramError):
    """The process that ran the script died; others go on."""

    code = "script_crashed"
    can_retry = True


class RunCancelled(ProgramError):
    """The run was closed before its end."""

    code = "run_cancelled"


class ReplayDiverged(ProgramError):
    """Gone on with after a crash, the script did something else than it had done before."""

    code = "replay_diverged"

    def __init__(self, message: str) -> None:
        super().__init__(f"The run was to go on after a crash, but its program did something else: {message}")


class NotResumable(ProgramError):
    """The run cannot be gone on with from where it was when its process or the engine died."""

    code = "run_not_resumable"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The run cannot go on after a crash: {reason}")
        self.reason = reason


class SandboxUnavailable(ProgramError):
    """No process to run the script in."""

    code = "sandbox_unavailable"
    can_retry = True
