"""Which source file is compiled with which flags.

A file whose name ends in the name of a form (`form_avx2.cpp`) may use that form's instructions; every other file is
compiled for any x86-64 processor, because it runs before it is known what this one can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

COMMON = (
    *("-std=c++20", "-O3", "-fPIC", "-pthread", "-Wall", "-Wextra"),
    *("-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    # Sums must come out the same in every form and file: nothing is reassociated, and a multiplication and an addition
    # become one rounding only where the source says so.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    "-DPy_LIMITED_API=0x030B0000",
)
"""Flags of every file."""

LINK = ("-shared", "-pthread", "-Wl,-z,noexecstack", "-Wl,-z,relro", "-Wl,-z,now")
"""Flags of the link; what the module needs of Python is resolved when it is loaded."""

_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_AVX512VNNI = (*_AVX512, "-mavx512vnni")
_AVX512BF16 = (*_AVX512VNNI, "-mavx512bf16")
_AMX = (*_AVX512BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8")


@dataclass(frozen=True)
class Form:
    """One set of instructions that some files are written for.

    Attributes:
        name: Ends the names of its files, after an underscore.
        flags: Allow its instructions.
        probe: An instruction of it, for finding out whether compiler and assembler know it.
    """

    name: str
    flags: tuple[str, ...]
    probe: str

    @property
    def left_out(self) -> str:
        """Flag that tells the other files that this form is not there."""
        return f"-DWYE_NO_{self.name.upper()}"


FORMS = (
    Form("avx2", _AVX2, "vpaddd %ymm0, %ymm0, %ymm0"),
    Form("avx512", _AVX512, "vpaddd %zmm0, %zmm0, %zmm0"),
    Form("avx512vnni", _AVX512VNNI, "vpdpbusd %zmm0, %zmm0, %zmm0"),
    Form("avx512bf16", _AVX512BF16, "vdpbf16ps %zmm0, %zmm0, %zmm0"),
    Form("amx", _AMX, "tdpbf16ps %tmm0, %tmm1, %tmm2"),
)
"""Every form; each one's instructions include those of the forms before it."""


def form_of(source: Path) -> Form | None:
    """The form that a file is written for, or None for any x86-64 processor."""
    return next((form for form in FORMS if source.stem.endswith(f"_{form.name}")), None)


def in_link_order(sources: list[Path]) -> list[Path]:
    """Sources with the least demanding first.

    An inline function that several files contain is linked once, from the first: were that one compiled for AVX512, a
    processor without it would crash in code that has nothing to do with forms.
    """
    rank = {form: number for number, form in enumerate(FORMS, 1)}

    def order(source: Path) -> tuple[int, str]:
        form = form_of(source)
        return (rank[form] if form else 0, source.name)

    return sorted(sources, key=order)
