"""Runs batches on the device, one after the other, while the host prepares the next.

All device work starts in one thread, in the order of `submit`, so a page that the host has already given to another
sequence cannot be overwritten before the step that still reads it has run.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from engine.kv.storage import KVStorage
from engine.models.step import StepInputs, StepModel
from engine.runner.inputs import InputStager, StagedStep
from engine.runner.readout import DeviceResults, to_host
from engine.sampling.sampler import Sampler, gather_logprobs
from engine.sampling.state import SamplerState
from engine.scheduling.batch import Batch, LaneResult

StepHandle = Callable[[], list[LaneResult]]
"""Waits for a step and returns one result a lane; raises what the step raised."""


class ModelRunner:
    """Owns the device: model, KV tensors, sampler state.

    Args:
        model: The decoder.
        storage: K and V.
        state: Rows of device state, as many as sequences may run.
        num_threads: Threads of one operation on a CPU; None leaves torch's choice.
    """

    def __init__(
        self,
        *,
        model: StepModel,
        storage: KVStorage,
        state: SamplerState,
        num_threads: int | None = None,
    ) -> None:
        self._model = model
        self._storage = storage
        self._state = state
        self._sampler = Sampler(state)
        self._stager = InputStager(storage.page_size, storage.device)
        self._worker = ThreadPoolExecutor(
            1, thread_name_prefix="device", initializer=_set_threads, initargs=(num_threads,)
        )

    def submit(self, batch: Batch) -> StepHandle:
        """Starts a batch behind those already submitted; does not wait."""
        staged = self._stager.stage(batch)
        future: Future[list[LaneResult]] = self._worker.submit(self._run, staged)
        return future.result

    def close(self) -> None:
        """Waits for what was submitted and lets go of the thread. Idempotent."""
        self._worker.shutdown(wait=True)

    @torch.inference_mode()
    def _run(self, staged: StagedStep) -> list[LaneResult]:
        self._turn_over_rows(staged.batch)
        self._storage.copy_pages(staged.batch.copies)
        token_ids = staged.token_ids
        if staged.fed_rows is not None:
            token_ids.index_copy_(0, staged.fed_rows, self._state.last_tokens[staged.fed_states])
        logits = self._model.forward(
            StepInputs(
                token_ids=token_ids,
                positions=staged.positions,
                layout=staged.layout,
                storage=self._storage,
                readout_rows=staged.readout_rows,
            )
        )
        return to_host(staged, self._read_out(staged, logits))

    def _turn_over_rows(self, batch: Batch) -> None:
        for row in batch.released_rows:
            self._state.release(row)
        for taken in batch.assigned_rows:
            self._state.assign(
                taken.row,
                params=taken.params,
                seed=taken.seed,
                stream=taken.stream,
                prompt_ids=taken.prompt_ids,
                output_ids=taken.output_ids,
                eos_token_ids=taken.eos_token_ids,
            )

    def _read_out(self, staged: StagedStep, logits: torch.Tensor) -> DeviceResults:
        prompts = [
            gather_logprobs(
                logits[readout.first : readout.last],
                torch.tensor(readout.targets, dtype=torch.int64, device=logits.device),
                readout.num_top,
            )
            for readout in staged.prompt_readouts
        ]
        if not staged.sample_lanes:
            return DeviceResults(None, prompts)
        rows = logits if len(staged.sample_lanes) == logits.shape[0] else logits.index_select(0, staged.sample_rows)
        return DeviceResults(self._sampler.sample(rows, staged.sample_lanes), prompts)


def _set_threads(num_threads: int | None) -> None:
    """OpenMP's thread count belongs to the calling thread, so it is set in the one that computes."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
