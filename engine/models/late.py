"""Weights of the model that serves, as torch takes them, loaded when something first needs them.

The native step has its own form of the weights. What it does not do torch does beside it, with the weights once more in
bfloat16: they are read from where the model came from while the engine goes on, and stay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

import torch

from engine.errors import InvalidRequest
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.step import StepInputs

log = logging.getLogger(__name__)


class LateDecoder:
    """A `StepModel` that must be prepared before its first step.

    Attributes:
        config: Of the model.
    """

    def __init__(self, config: ModelConfig, load: Callable[[], Decoder]) -> None:
        """Takes what brings the decoder: called once, in a thread of its own, and again if it failed."""
        self.config = config
        self._load = load
        self._decoder: Decoder | None = None
        self._loading: Future[None] | None = None

    @property
    def decoder(self) -> Decoder:
        """The decoder. Only after `prepare` has come to its end."""
        assert self._decoder is not None, "prepared before it is asked"
        return self._decoder

    @property
    def is_ready(self) -> bool:
        """Whether it is loaded."""
        return self._decoder is not None

    def prepare(self) -> Future[None] | None:
        """Has the decoder loaded, if it is not there; None if there is nothing to wait for.

        The future's error is `InvalidRequest` where the weights cannot be read any more.
        """
        if self._decoder is not None:
            return None
        if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
            self._loading = Future()
            self._loading.set_running_or_notify_cancel()  # several wait for it: none of them can call it off
            threading.Thread(target=self._run, args=(self._loading,), name="weights", daemon=True).start()
        return self._loading

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step; see `StepModel.forward`."""
        return self.decoder.forward(inputs)

    def _run(self, loading: Future[None]) -> None:
        try:
            self._decoder = self._load()
        except Exception as error:
            log.warning("the weights cannot be loaded once more, for torch", exc_info=error)
            loading.set_exception(InvalidRequest(f"the weights cannot be loaded for it: {error}", None))
        else:
            log.info("torch computes what the native step does not from now on: the weights are held twice")
            loading.set_result(None)
