"""The flashinfer library: loaded, checked and its kernels compiled, with a clear error where that cannot be.

Its wrapper classes are left out. Their `plan` walks tensors in Python and copies five times, about a millisecond for
256 lanes, and their page-locked buffer may still be read by the step before when the next one plans; below them lies
one module a form of kernel with `plan` and `paged_run`, which is what is used here, of exactly one version.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from engine.cuda.caches import keep_kernels
from engine.errors import ModelLoadError

log = logging.getLogger(__name__)

VERSION = "0.6.14"
"""The only version whose modules are known to take these arguments."""

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)

Family = Literal["fa2", "fa3"]


@dataclass(frozen=True, slots=True)
class Form:
    """Which kernels.

    Attributes:
        family: `fa3` has Hopper's instructions and takes rows of one head together; `fa2` runs everywhere, takes the
            heads that share K and V together, splits long contexts, and knows masks.
        dtype: Of queries, K, V and output.
        head_dim: D.
        has_window: Whether they know a sliding window.
    """

    family: Family
    dtype: torch.dtype
    head_dim: int
    has_window: bool


class Module(Protocol):
    """Compiled kernels of one form, as flashinfer 0.6.14 has them."""

    def plan(self, *args: Any) -> Sequence[int]:
        """Cuts lanes into work for the processors: fills a page-locked buffer and starts its copy to the device."""
        ...

    def paged_run(self, *args: Any) -> None:
        """Attends; writes its output in place."""
        ...


class Library(Protocol):
    """What the backend needs of flashinfer."""

    def families(self, device: torch.device) -> tuple[Family, ...]:
        """Those that run on a device; `fa2` always."""
        ...

    def load(self, forms: Sequence[Form]) -> list[Module]:
        """Compiles what was not compiled before, and loads it.

        Raises:
            ModelLoadError: They cannot be compiled here.
        """
        ...


class FlashInfer:
    """The installed library.

    Raises:
        ModelLoadError: It is not installed, does not load, or is another version.
    """

    def __init__(self) -> None:
        keep_kernels()
        try:
            import flashinfer
        except ImportError as error:
            advice = f"`pip install flashinfer-python=={VERSION}` or `pip install 'wye[cuda]'` adds it"
            raise ModelLoadError(f"attention backend 'flashinfer' does not load ({error}); {advice}") from None
        if flashinfer.__version__ != VERSION:
            raise ModelLoadError(
                f"attention backend 'flashinfer' is made for flashinfer-python {VERSION}, "
                f"but {flashinfer.__version__} is installed"
            )

    def families(self, device: torch.device) -> tuple[Family, ...]:
        """See `Library`."""
        return ("fa2", "fa3") if torch.cuda.get_device_capability(device)[0] == 9 else ("fa2",)

    def load(self, forms: Sequence[Form]) -> list[Module]:
        """See `Library`."""
        from flashinfer.jit import build_jit_specs, env, gen_batch_prefill_module
        from flashinfer.prefill import get_batch_prefill_module

        try:
            specs = [gen_batch_prefill_module(*_arguments(form)) for form in forms]
            missing = [spec for spec in specs if not spec.is_compiled]
            started_s = time.perf_counter()
            if missing:
                log.info(
                    "compiling attention kernels for first use; this takes a minute or more and is kept in %s",
                    env.FLASHINFER_WORKSPACE_DIR,
                )
                build_jit_specs(missing)  # all at once: each is a dozen files that compile side by side
                log.info("attention kernels compiled in %.0f s", time.perf_counter() - started_s)
            return [get_batch_prefill_module(*_arguments(form)) for form in forms]
        except (RuntimeError, OSError) as error:
            raise ModelLoadError(
                "attention backend 'flashinfer' compiles its kernels on first use, which failed here "
                f"(it needs nvcc of CUDA {torch.version.cuda} on PATH or in CUDA_HOME, ninja and a C++ compiler): "
                f"{_last_line(error)}"
            ) from error


def describe_flashinfer() -> tuple[bool, str]:
    """What the installed library can do here.

    Returns:
        Whether its kernels are or can be compiled, and what there is to say, for people.

    Raises:
        ImportError: It does not load.
    """
    keep_kernels()
    import flashinfer
    from flashinfer.jit import cpp_ext, env

    if flashinfer.__version__ != VERSION:
        return False, f"the attention backend is made for version {VERSION} and refuses others"
    families = "prefill by FlashAttention-3 on Hopper, all else by FlashAttention-2; no int8 or fp8 K and V"
    if env.has_flashinfer_jit_cache():
        return True, f"loads, with kernels compiled ahead; {families}"
    try:
        compiler = Path(cpp_ext.get_cuda_path()) / "bin" / "nvcc"
        missing = [str(tool) for tool in (compiler, "ninja", "c++") if shutil.which(tool) is None]
        found = cpp_ext.get_cuda_version()
    except (RuntimeError, OSError) as error:
        missing, found = [_last_line(error)], None
    if missing:
        return False, f"loads, but cannot compile its kernels, as it does on first use: {', '.join(missing)} not found"
    wanted = torch.version.cuda
    if wanted is not None and found is not None and str(found).split(".")[0] != wanted.split(".")[0]:
        return (
            False,
            f"loads, but would compile its kernels with nvcc {found} for a torch of CUDA {wanted}: set CUDA_HOME",
        )
    return (
        True,
        f"loads; nvcc {found} compiles kernels on first use, kept in {env.FLASHINFER_WORKSPACE_DIR}; {families}",
    )


def _arguments(form: Form) -> tuple[Any, ...]:
    """As `gen_batch_prefill_module` takes them: no positions encoded, no cap on scores, float32 scores."""
    dtypes = (form.dtype, form.dtype, form.dtype, torch.int32)
    return (form.family, *dtypes, form.head_dim, form.head_dim, 0, form.has_window, False, False)


def _last_line(error: Exception) -> str:
    """The line of a compiler's output that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines or [type(error).__name__])[-1][:300]
