"""Whether the native step is here, why not, and which of its forms this processor can run."""

from __future__ import annotations

import functools
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from engine.errors import ModelLoadError
from engine.native.building.record import BuildRecord, read_record

FORM_VARIABLE = "WYE_NATIVE_FORM"
"""Environment variable that names the form to use instead of the best one."""

_MODULE = "engine.native._native"


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """What there is of the native step.

    Attributes:
        available: Whether it can compute here.
        reason: Why not, for people; empty if it can.
        forms: Forms that this processor can run, best first.
        form: The one to use; None if it is not available.
    """

    available: bool
    reason: str
    forms: tuple[str, ...] = ()
    form: str | None = None


def native_module() -> ModuleType | None:
    """The extension module, or None where it was not built or does not load; `native_status` says why."""
    return _load()[0]


def native_status() -> NativeStatus:
    """Looks at module, processor and `WYE_NATIVE_FORM`.

    Raises:
        ModelLoadError: `WYE_NATIVE_FORM` names a form that this processor cannot run, or none at all.
    """
    module = native_module()
    if module is None:
        return NativeStatus(False, _load()[1])
    forms = tuple(module.forms())
    if not forms:
        return NativeStatus(False, "this processor has not even AVX2, FMA and F16C")
    asked = os.environ.get(FORM_VARIABLE, "")
    if asked and asked not in forms:
        raise ModelLoadError(f"{FORM_VARIABLE} is {asked!r}, but here it can be {', '.join(reversed(forms))}")
    return NativeStatus(True, "", forms, asked or forms[0])


@functools.cache
def build_record() -> BuildRecord | None:
    """What the installation wrote down about the build; None where nothing was installed."""
    return read_record(Path(__file__).parent)


@functools.cache
def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module(_MODULE), ""
    except ModuleNotFoundError:
        record = build_record()
        if record is None:
            return None, "it was not built: this source tree was not installed (`make install` builds it)"
        return None, f"it was not built: {record.reason or 'its file is gone'}"
    except ImportError as error:
        return None, f"it does not load: {error}"
