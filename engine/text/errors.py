"""What can be wrong with text; all of it is the caller's fault and nothing was started.

ValueError
├── InvalidText      the text cannot be encoded (a lone surrogate)
├── TextTooLong      more characters than the caller allows
└── TemplateError    the chat template refused the messages, or failed on them
"""

from __future__ import annotations


class InvalidText(ValueError):
    """The text is no valid Unicode: it holds a lone surrogate.

    Attributes:
        message: Text for people.
        position: Index of the first offending character.
    """

    def __init__(self, position: int, char: str) -> None:
        self.message = f"the text holds a lone surrogate (U+{ord(char):04X}) at position {position}"
        self.position = position
        super().__init__(self.message)


class TextTooLong(ValueError):
    """The text is longer than the caller allows; it was not encoded.

    Attributes:
        message: Text for people.
        num_chars: Length of the text.
        max_chars: What was allowed.
    """

    def __init__(self, num_chars: int, max_chars: int) -> None:
        self.message = f"the text has {num_chars} characters, at most {max_chars} are allowed"
        self.num_chars = num_chars
        self.max_chars = max_chars
        super().__init__(self.message)


class TemplateError(ValueError):
    """A chat template raised, failed or produced too much.

    Attributes:
        message: The template's own words where it raised.
    """

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)
