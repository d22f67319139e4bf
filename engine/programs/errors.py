"""What is wrong with a device program, said with its own lines.

ProgramError
├── ProgramInvalid       the text cannot be a program; nothing was run
└── ProgramMisused       the program is fine, what it was given is not (a parameter, a vocabulary)
"""

from __future__ import annotations


class ProgramError(ValueError):
    """Root of everything this package raises."""


class ProgramInvalid(ProgramError):
    """The source is not a device program.

    Attributes:
        message: What is wrong, without the place.
        line: Line of the source, from 1.
        column: Column, from 1.
    """

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.message = message
        self.line = line
        self.column = column


class ProgramMisused(ProgramError):
    """A value that a program was given does not fit it.

    Attributes:
        name: The parameter.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name
