"""Runs batches on the device, one after the other, while the host prepares the next.

All device work starts in one thread, in the order of `submit`, so a page that the host has already given to another
sequence cannot be overwritten before the step that still reads it has run. That thread does nothing between two calls
of the model that could be done elsewhere: inputs are staged by whoever submits, results unfolded by whoever waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import torch

from engine.attention.reader import AttentionReader
from engine.attention.scores import Scores
from engine.constraints.masks import StepMasks
from engine.kv.storage import KVStorage
from engine.kv.tiers import HostStore, Transfer, split
from engine.models.step import StepModel
from engine.request import Distribution, Probes, Readout
from engine.runner.decoding import DecodeStep, DrawnStep, StagedDecode
from engine.runner.device_thread import DeviceThread
from engine.runner.inputs import InputStager, StagedStep
from engine.runner.pooling import sum_states
from engine.runner.programs import ProgramRows
from engine.runner.readout import StepOutcome, fetch, lane_results
from engine.runner.verifying import Wave, verify
from engine.sampling.choice import SampleLane
from engine.sampling.distribution import describe
from engine.sampling.looks import WrittenLooks, can_be_written
from engine.sampling.processors import sanitize
from engine.sampling.sampler import LaneMasks, Logprobs, SampledTokens, Sampler
from engine.sampling.state import SamplerState
from engine.scheduling.batch import Batch, LaneResult

StepHandle = Callable[[], list[LaneResult]]
"""Waits for a step and returns one result a lane; raises what the step raised. To be called once."""


class ModelRunner:
    """Owns the device: model, KV tensors, sampler state.

    Args:
        model: The decoder.
        storage: K and V.
        state: Rows of device state, as many as sequences may run.
        num_threads: Threads of one operation on a CPU; None leaves torch's choice.
        team: Threads that native sampling spreads over; see `Sampler`.
        host: K and V in host memory, if there is any.
        decode: Computes steps of decoding lanes in a way of its own, if the device has one.
        reader: Finds out what rows attend to, if that can be.
    """

    def __init__(
        self,
        *,
        model: StepModel,
        storage: KVStorage,
        state: SamplerState,
        num_threads: int | None = None,
        team: object | None = None,
        host: HostStore | None = None,
        decode: DecodeStep | None = None,
        reader: AttentionReader | None = None,
    ) -> None:
        self._reader = reader
        self._model = model
        self._decode = decode
        self._storage = storage
        self._host = host
        self._state = state
        self._sampler = Sampler(state, team=team)
        self._programs = ProgramRows(state, team)
        self._stager = InputStager(storage, state.last_tokens, model.config.hidden_size, decode)
        self._thread = DeviceThread(num_threads, None if decode is None else decode.rest)

    def submit(self, batch: Batch) -> StepHandle:
        """Starts a batch behind those already submitted; does not wait."""
        staged = self._stager.stage(batch)
        wait = self._thread.submit(partial(self._prepare, staged), partial(self._compute, staged))
        return lambda: lane_results(staged, wait().wait())

    def prepare_attention(self) -> Future[None] | None:
        """Has ready what reads attention, beside the steps; None if there is nothing to wait for."""
        assert self._reader is not None
        return self._reader.prepare()

    def close(self) -> None:
        """Waits for what was submitted and lets go of the thread. Idempotent."""
        self._thread.close()

    def _prepare(self, staged: StagedStep) -> None:
        self._turn_over_rows(staged.batch)
        saves, restores = split(staged.batch.transfers)
        self._transfer(saves)
        if staged.copies:
            self._storage.copy_pages(staged.copies)
        self._transfer(restores)
        if staged.fed is not None:
            staged.fed.fill()

    def _compute(self, staged: StagedStep) -> StepOutcome:
        device = self._storage.device
        if staged.decode is not None:
            drawn = self._draw_whole(staged, staged.decode)
            if drawn is not None:
                self._programs.note(drawn.noted)
                looks = None if drawn.looks is None else self._written(staged, drawn.looks)
                return fetch(device, SampledTokens(drawn.tokens, None), probes=self._noted(staged), looks=looks)
        if self._programs and self._decode is None and staged.batch.masks is None:
            self._programs.prepare(staged.sample_lanes)
        logits = self._forward(staged)
        prompts = self._score_prompts(staged, logits) if staged.prompt_readouts else ()
        hidden = None if staged.inputs is None else staged.inputs.hidden
        pooled = {} if hidden is None else sum_states(staged.pooled, hidden.states)
        behind = self._describe_rows(staged, logits) if staged.readouts.passes else {}
        attention = self._attended(staged) if staged.batch.num_attended else {}
        if not staged.sample_lanes:
            return fetch(device, None, prompts=prompts, pooled=pooled, rows=behind, attention=attention)
        rows = logits if staged.sample_rows is None else logits.index_select(0, staged.sample_rows)
        all_masks = None if staged.batch.masks is None else staged.batch.masks.take()
        masks = None if all_masks is None else _masks(staged, all_masks)
        looks = self._look(staged, rows, masks) if staged.batch.num_readouts else None
        distributions = self._describe(staged, rows, masks) if staged.batch.num_readouts and looks is None else {}
        is_bare = all_masks is None and not staged.batch.num_readouts and not staged.readouts.drafts
        sampled = self._finish_by_program(rows, staged.sample_lanes) if is_bare else None
        if sampled is None:
            sampled = self._sample(rows, staged.sample_lanes, masks)
        noted = self._noted(staged)  # before guesses are verified, which draws again
        waves = self._verify(staged, logits, sampled, all_masks) if staged.readouts.drafts else ()
        return fetch(
            device,
            sampled,
            prompts=prompts,
            pooled=pooled,
            distributions=distributions,
            looks=looks,
            probes=noted,
            rows=behind,
            waves=waves,
            attention=attention,
        )

    def _draw_whole(self, staged: StagedStep, decode: StagedDecode) -> DrawnStep | None:
        """Computes the step and draws in one, where its lanes want nothing else; None where they do."""
        assert self._decode is not None
        looks = staged.batch.num_readouts > 0
        if staged.batch.masks or (looks and not all(map(can_be_written, _readouts(staged).values()))):
            return None
        lanes = self._programs.alike(staged.sample_lanes) if self._programs else ()
        if lanes is None or (lanes and looks):
            return None
        return self._decode.draw_by_program(decode, lanes) if lanes else self._decode.draw(decode, looks=looks)

    def _finish_by_program(self, rows: torch.Tensor, lanes: Sequence[SampleLane]) -> SampledTokens | None:
        """Draws by the device's own way for programs, where it has one for these lanes."""
        if self._decode is None or not self._programs:
            return None
        own = self._programs.alike(lanes)
        drawn = self._decode.finish_by_program(rows, lanes, own) if own else None
        if drawn is None:
            return None
        self._programs.note(drawn.noted)
        return SampledTokens(drawn.tokens, None)

    def _forward(self, staged: StagedStep) -> torch.Tensor:
        if staged.decode is not None:
            assert self._decode is not None
            return self._decode.forward(staged.decode)
        assert staged.inputs is not None
        return self._model.forward(staged.inputs)

    def _attended(self, staged: StagedStep) -> dict[int, list[Scores]]:
        """By place in the batch, what rows attend to."""
        assert self._reader is not None
        assert staged.inputs is not None
        lanes = staged.batch.lanes
        wanted = [(place, lane.attends) for place, lane in enumerate(lanes) if lane.attends is not None]
        return self._reader.read(staged.inputs, wanted)

    def _noted(self, staged: StagedStep) -> dict[int, Probes]:
        """By place in the batch, what programs noted down."""
        places = staged.readouts.sampling
        return {places[at]: noted for at, noted in self._programs.take_probes().items()} if self._programs else {}

    def _sample(self, rows: torch.Tensor, lanes: Sequence[SampleLane], masks: LaneMasks | None) -> SampledTokens:
        if not self._programs:
            return self._sampler.sample(rows, lanes, masks)
        if self._decode is not None:
            running = self._programs.running(lanes)
            self._decode.recall([lanes[lane.row].row for lane in running], running)
        draws = self._programs.draw(self._sampler, rows, lanes, masks)
        sampled = self._sampler.sample(draws.logits, lanes, masks, draws.forced)
        draws.tell(sampled.token_ids)
        return sampled

    def _verify(
        self, staged: StagedStep, logits: torch.Tensor, sampled: SampledTokens, masks: StepMasks | None
    ) -> list[Wave]:
        drawn = zip(staged.sample_lanes, sampled.token_ids.tolist(), strict=True)
        first = dict(zip(staged.readouts.sampling, drawn, strict=True))
        return verify(logits, staged.readouts.drafts, first, masks, self._sample)

    def _transfer(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            assert self._host is not None
            self._host.run(transfer)

    def _turn_over_rows(self, batch: Batch) -> None:
        for row in batch.released_rows:
            self._state.release(row)
            self._programs.release(row)
        for taken in batch.assigned_rows:
            self._state.assign(
                taken.row,
                params=self._programs.assign(taken),
                seed=taken.seed,
                stream=taken.stream,
                prompt_ids=taken.prompt_ids,
                output_ids=taken.output_ids,
                eos_token_ids=taken.eos_token_ids,
            )

    def _describe(self, staged: StagedStep, rows: torch.Tensor, masks: LaneMasks | None) -> dict[int, Distribution]:
        """By place in the batch, the distributions wanted, before anything is drawn from them."""
        found = self._sampler.describe(rows, staged.sample_lanes, masks, _readouts(staged))
        return {staged.readouts.sampling[at]: distribution for at, distribution in found.items()}

    def _look(
        self, staged: StagedStep, rows: torch.Tensor, masks: LaneMasks | None
    ) -> tuple[Sequence[int], WrittenLooks] | None:
        """The same without waiting, where the device writes it down; None where it does not."""
        wanted = _readouts(staged)
        looks = self._sampler.look(rows, staged.sample_lanes, masks, wanted)
        return None if looks is None else ([staged.readouts.sampling[at] for at in wanted], looks)

    def _written(self, staged: StagedStep, rows: torch.Tensor) -> tuple[Sequence[int], WrittenLooks]:
        """What a step wrote down that drew and looked in one, a row a lane."""
        wanted = _readouts(staged)
        return list(wanted), WrittenLooks(rows, list(wanted.items()), self._state.vocab_size)

    def _describe_rows(self, staged: StagedStep, logits: torch.Tensor) -> dict[int, list[Distribution]]:
        """By place in the batch, the distributions behind rows of a pass; what a program will read, it gets."""
        found = {}
        for one in staged.readouts.passes:
            sequence = staged.batch.lanes[one.lane].sequence
            if sequence.program is not None:
                sequence.program.collect(one.number, logits[one.first : one.last])
                continue
            readout = sequence.request.readout
            assert readout is not None
            values = logits[one.first : one.last].clone()
            sanitize(values)
            found[one.lane] = describe(values, range(len(values)), [readout] * len(values), self._sampler.outline)
        return found

    def _score_prompts(self, staged: StagedStep, logits: torch.Tensor) -> list[Logprobs]:
        return [
            self._sampler.gather_logprobs(
                logits[readout.first : readout.last],
                torch.tensor(readout.targets, dtype=torch.int64, device=logits.device),
                readout.num_top,
            )
            for readout in staged.prompt_readouts
        ]


def _readouts(staged: StagedStep) -> dict[int, Readout]:
    """By place among those who sample, what is wanted of their distributions."""
    lanes = staged.batch.lanes
    return {
        at: readout
        for at, place in enumerate(staged.readouts.sampling)
        if (readout := lanes[place].readout) is not None
    }


def _masks(staged: StagedStep, masks: StepMasks) -> LaneMasks | None:
    """What those who sample may draw first."""
    wanted = masks.at(0)
    if not wanted:
        return None
    places = {lane.row: place for place, lane in enumerate(staged.sample_lanes)}
    words = masks.words if len(wanted) == len(masks.keys) else masks.words[list(wanted.values())]
    return LaneMasks([places[row] for row in wanted], words)
