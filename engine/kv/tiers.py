"""KV in host memory: pages that gave way to others and are copied back when somebody computes on them again.

    device pages ──save──▶ host pages ──restore──▶ device pages

Who decides what lies where is the host's side (`HostTier`, page numbers alone); copies are made on the device's side
(`HostStore`, tensors) with the next step: a page that was given to somebody else in the same moment is saved before it
is written over. A restore of what was never saved fails its step; it never yields what
is not there.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from engine.kv.meter import KVMeter, Payer
from engine.kv.storage import KVStorage


@dataclass(slots=True, eq=False)
class Transfer:
    """Pages to be copied at the beginning of a step.

    Attributes:
        device_pages: Pages of the pool.
        host_pages: Pages of host memory, as many.
        saved: For a restore: the transfer that has saved the host pages; None for a save.
        is_done: The device has made it.
        failed: It was not made, and will not be.
        seconds: How long it took.
    """

    device_pages: Sequence[int]
    host_pages: Sequence[int]
    saved: Transfer | None = None
    is_done: bool = False
    failed: bool = False
    seconds: float = 0.0


def split(transfers: Sequence[Transfer]) -> tuple[list[Transfer], list[Transfer]]:
    """Saves, which come before the copies that a step makes between pages, and restores, which come after them.

    A page that is saved or copied from may have been given to somebody else since, to be copied or restored to.
    """
    saves = [transfer for transfer in transfers if transfer.saved is None]
    return saves, [transfer for transfer in transfers if transfer.saved is not None]


@dataclass(slots=True, eq=False)
class HostCopy:
    """The KV of one context in host memory.

    Attributes:
        pages: Host pages, in order.
        saved: What saved them.
        payer: Who pays for them.
    """

    pages: list[int]
    saved: Transfer
    payer: Payer


@dataclass(slots=True)
class HostTier:
    """Which host pages are free, and which copies are still to be made.

    Attributes:
        num_pages: Pages of host memory in all; 0 for no such tier.
        pending: Copies for the next step, in order.
        num_saved: Pages saved so far.
        num_restored: Pages restored so far.
    """

    num_pages: int
    meter: KVMeter
    pending: list[Transfer] = field(default_factory=list)
    num_saved: int = 0
    num_restored: int = 0
    _free: list[int] = field(init=False)
    _leaving: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._free = list(range(self.num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Pages that nobody uses."""
        return len(self._free)

    def save(self, device_pages: Sequence[int], payer: Payer) -> HostCopy:
        """Copies pages to host memory, where there is room: at the next step, whoever gets the pages meanwhile."""
        assert len(device_pages) <= self.num_free
        pages = [self._free.pop() for _ in device_pages]
        transfer = Transfer(array("i", device_pages), pages)
        self.pending.append(transfer)
        self.num_saved += len(pages)
        self.meter.tick()
        self.meter.host(payer, len(pages))
        return HostCopy(list(pages), transfer, payer)

    def restore(self, copy: HostCopy, first: int, device_pages: Sequence[int]) -> None:
        """Copies pages back, from the `first` of the copy on; the copy is given up with that."""
        pages = copy.pages[first : first + len(device_pages)]
        assert len(pages) == len(device_pages)
        self.pending.append(Transfer(array("i", device_pages), pages, saved=copy.saved))
        self.num_restored += len(pages)
        # Not to be saved to before they are read: a step makes its saves first.
        self._leaving += copy.pages
        self.meter.tick()
        self.meter.host(copy.payer, -len(copy.pages))
        copy.pages.clear()

    def free(self, copy: HostCopy, keep: int = 0) -> None:
        """Gives up the pages of a copy but for the first; what is to be copied from them still is before new uses."""
        gone = copy.pages[keep:]
        del copy.pages[keep:]
        self._free += reversed(gone)
        self.meter.tick()
        self.meter.host(copy.payer, -len(gone))

    def check_integrity(self, copies: Iterable[HostCopy]) -> None:
        """Raises AssertionError unless every host page is free or part of one of the living copies."""
        held = [page for copy in copies for page in copy.pages]
        assert sorted([*held, *self._free, *self._leaving]) == list(range(self.num_pages)), (
            "host pages are lost, or held twice"
        )

    def take_pending(self) -> list[Transfer]:
        """The copies to be made with a step that is about to be run."""
        pending, self.pending = self.pending, []
        self._free += reversed(self._leaving)
        self._leaving.clear()
        return pending


class HostStore:
    """The tensors of host pages; pinned where that makes copies faster.

    Args:
        storage: The pool's.
        num_pages: Host pages.
    """

    def __init__(self, storage: KVStorage, num_pages: int) -> None:
        self._storage = storage
        is_cuda = storage.device.type == "cuda"
        self._kept = [
            torch.empty((2, num_pages, *tensor.shape[2:]), dtype=tensor.dtype, pin_memory=is_cuda)
            for tensor in storage.paged
        ]

    def run(self, transfer: Transfer) -> None:
        """Makes a copy, behind all device work that was started before.

        Raises:
            RuntimeError: What is to be restored was never saved.
        """
        started_s = time.perf_counter()
        host = torch.tensor(transfer.host_pages)
        device = torch.tensor(transfer.device_pages, device=self._storage.device)
        if transfer.saved is None:
            for kept, pages in zip(self._kept, self._storage.paged, strict=True):
                kept.index_copy_(1, host, pages.index_select(1, device).to(kept.device))
        else:
            if not transfer.saved.is_done:
                raise RuntimeError("the KV to be restored was never saved")
            for kept, pages in zip(self._kept, self._storage.paged, strict=True):
                pages.index_copy_(1, device, kept.index_select(1, host).to(pages.device))
        transfer.seconds = time.perf_counter() - started_s
        transfer.is_done = True
