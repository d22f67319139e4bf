"""How much a constraint may cost."""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_SOURCE_BYTES = 256 * 1024
"""Longest schema, choice or grammar."""

MAX_REGEX_BYTES = 16 * 1024
"""Longest regular expression: each step looks at all of it."""

MAX_GBNF_CHARS = 32 * 1024
"""Longest grammar that is translated first."""

MAX_DEPTH = 64
"""Deepest nesting of a schema, as JSON: each of its levels counts, `properties` and the like too."""

MAX_CHOICES = 4096
"""Most strings to choose from."""

COMPILE_CPU_S = 10.0
"""Most processor time that a constraint may take to compile: the same however busy the machine is."""

COMPILE_WALL_S = 120.0
"""Longest that compiling may take; a machine that has not given it its processor time by then is too busy."""

COMPILE_BYTES = 512 * 2**20
"""Most memory that compiling may take."""


def parser_limits() -> LLParserLimits:
    """What llguidance may spend.

    Large expressions are not worked out for the whole vocabulary in advance: that takes seconds and gigabytes for some
    that are cheap to use.
    """
    return LLParserLimits(precompute_large_lexemes=False, verbose_errors=False)
