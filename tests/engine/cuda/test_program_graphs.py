"""Device programs behind the logits of recorded steps draw what they draw without a graph."""

from __future__ import annotations

import gc
import logging
import random
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from engine.cuda import program_graphs, recorded_step, recordings
from engine.cuda.graphs import GraphDecoder
from engine.cuda.kernels.draw import FULL
from engine.cuda.model import CudaModel
from engine.cuda.program_ending import ProgramEnding
from engine.cuda.program_table import ProgramTable, tokens_seen
from engine.cuda.recorded_step import RecordedStep
from engine.models.checkpoint import open_checkpoint
from engine.models.weights import load_weights
from engine.programs.binding import bind
from engine.programs.session import ProgramSession
from engine.runner.programs import ProgramRows
from engine.sampling.params import SamplingParams
from engine.sampling.random import stream_key
from engine.sampling.sampler import TORCH, SampleLane, Sampler
from engine.sampling.state import SamplerState
from engine.scheduling.batch import Lane, RowAssignment
from tests.engine.models.harness import storage_for
from tests.tiny_models import write_tiny_model

V = 512
MOST_LANES = 4
PROMPT = (5, 9, 301)

PLAIN = "def sample(logits, key, heat):\n    return gumbel_argmax(logits / heat, key)\n"
WALK = """
state.level = 0.5

def sample(logits, key, prev, step, history, rate):
    state.level = state.level * 0.5 + rate * float(prev % 7) + float(step)
    probe.level = state.level
    return gumbel_argmax(logits + where(one_hot(history[-2]), state.level, 0.0), key)
"""
OWN = """
def sample(logits, key, prev):
    return where(uniform(key) < 0.3, prev, where(uniform(key) < 0.1, vocab_size, argmax(logits)))
"""
WHOLE = """
def sample(logits, key, history, counts):
    return gumbel_argmax(logits - float(counts) * 3.0 + float(sum(history)) * 0.001 * float(vocab % 3), key)
"""

VECTORS = """
state.seen = zeros(vocab)
state.count = 0
state.is_odd = False

def sample(logits, key, prev, rate):
    state.seen = where(one_hot(prev), rate, state.seen * 0.5)
    state.count = state.count + prev % 3
    state.is_odd = not state.is_odd
    probe.count = state.count
    return gumbel_argmax(logits - where(state.is_odd, state.seen, 0.0) + float(state.count), key)
"""

PROGRAMS: Mapping[str, tuple[str, dict[str, float]]] = {
    "scores": (PLAIN, {"heat": 0.7}),
    "state and recent tokens": (WALK, {"rate": 0.25}),
    "tokens of its own": (OWN, {}),
    "whole history": (WHOLE, {}),
    "state of every kind": (VECTORS, {"rate": 4.0}),
}


class Row:
    """One running sequence."""

    def __init__(self, row: int, program: str | None, seed: int) -> None:
        self.row = row
        self.seed = seed
        self.tokens = list(PROMPT)
        self.session: ProgramSession | None = None
        if program is not None:
            source, values = PROGRAMS[program]
            scaled = {name: value + 0.1 * row for name, value in values.items()}
            self.session = ProgramSession(bind(source, scaled, V), stream_key(seed, 0), len(PROMPT))

    @property
    def lane(self) -> Lane:
        sequence = SimpleNamespace(token_ids=self.tokens, num_prompt=len(PROMPT))
        return Lane(
            sequence=cast("Any", sequence),
            run=0,
            start=len(self.tokens) - 1,
            num_tokens=1,
            samples=True,
            feeds_back=False,
            reads_prompt=False,
            row=self.row,
            pages=array("i", [self.row]),
            copies=(),
        )

    @property
    def sample_lane(self) -> SampleLane:
        position = len(self.tokens)
        return SampleLane(row=self.row, position=position, num_output=position - len(PROMPT))


class Engine:
    """Rows that draw with or without recorded steps; logits are made up."""

    def __init__(self, rows: Sequence[Row], decoder: GraphDecoder | None, state: SamplerState) -> None:
        self.rows = {row.row: row for row in rows}
        self.decoder = decoder
        self.state = state
        self.programs = ProgramRows(state)
        self.sampler = Sampler(state, form=TORCH)
        self.noted: dict[int, Any] = {}
        for row in rows:
            self.assign(row)

    def assign(self, row: Row) -> None:
        self.rows[row.row] = row
        taken = RowAssignment(
            row.row,
            SamplingParams(max_tokens=50, temperature=0.9, top_k=0 if row.session else 40),
            row.seed,
            0,
            list(PROMPT),
            row.tokens[len(PROMPT) :],
            (0,),
            row.session,
        )
        self.programs.release(row.row)
        self.state.assign(
            row.row,
            params=self.programs.assign(taken),
            seed=row.seed,
            stream=0,
            prompt_ids=list(PROMPT),
            output_ids=taken.output_ids,
            eos_token_ids=(0,),
        )

    def draw(self, places: Sequence[int], *, recorded: bool, takes: bool = True, finished: bool = False) -> list[int]:
        """A step of some rows; without `takes` its tokens are void, with `finished` they are drawn from its logits."""
        rows = [self.rows[place] for place in places]
        lanes = [row.sample_lane for row in rows]
        if finished:
            tokens = self.finish(rows, lanes)
        else:
            tokens = self.draw_recorded(rows, lanes) if recorded else self.draw_plainly(rows, lanes)
        self.noted = {rows[at].row: noted for at, noted in self.programs.take_probes().items()}
        for row, token in zip(rows, tokens, strict=True):
            if takes:
                row.tokens.append(max(token, 0))
        return tokens

    def draw_plainly(self, rows: Sequence[Row], lanes: Sequence[SampleLane]) -> list[int]:
        logits = torch.stack([logits_of(row) for row in rows]).to(self.state.device)
        if self.decoder is not None:
            running = self.programs.running(lanes)
            self.decoder.recall([lanes[lane.row].row for lane in running], running)
        draws = self.programs.draw(self.sampler, logits, lanes, None)
        sampled = self.sampler.sample(draws.logits, lanes, None, draws.forced)
        draws.tell(sampled.token_ids)
        return sampled.token_ids.tolist()

    def finish(self, rows: Sequence[Row], lanes: Sequence[SampleLane]) -> list[int]:
        assert self.decoder is not None
        running = self.programs.alike(lanes)
        assert running
        logits = torch.stack([logits_of(row) for row in rows]).to(self.state.device)
        step = self.decoder.finish_by_program(logits, lanes, running)
        assert step is not None
        self.programs.note(step.noted)
        return step.tokens.tolist()

    def draw_recorded(self, rows: Sequence[Row], lanes: Sequence[SampleLane]) -> list[int]:
        assert self.decoder is not None
        MadeUp.logits.fill_(float("nan"))  # of padding
        MadeUp.logits[: len(rows)].copy_(torch.stack([logits_of(row) for row in rows]))
        staged = self.decoder.stage([row.lane for row in rows])
        running = self.programs.alike(lanes)
        assert staged is not None
        assert running
        for _ in range(2):
            step = self.decoder.draw_by_program(staged, running)
            if step is not None:
                self.programs.note(step.noted)
                return step.tokens.tolist()
            self.decoder.rest()
        raise AssertionError("it is not recorded")


def logits_of(row: Row) -> torch.Tensor:
    generator = torch.Generator().manual_seed(row.seed * 1000 + len(row.tokens))
    return torch.randn(V, generator=generator) * 3


class MadeUp:
    """In place of the kernels from tokens to logits, which a graph reads where they lie."""

    logits: torch.Tensor

    def __init__(self, plan: Any, lanes: Any, storage: Any, buffers: Any, last_tokens: Any, *, pdl: bool) -> None:
        self._width = plan.width
        self._buffers = buffers

    def launch(self) -> torch.Tensor:
        logits = self._buffers.logits[: self._width]
        logits.copy_(self.logits[: self._width])
        return cast("torch.Tensor", logits)


@pytest.fixture
def decoder(tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> GraphDecoder:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path, "llama", num_hidden_layers=1, vocab_size=V))
    model = CudaModel.of(checkpoint.config, load_weights(checkpoint, torch.float32, device))
    monkeypatch.setattr(recorded_step, "Decoding", MadeUp)
    monkeypatch.setattr(MadeUp, "logits", torch.empty((MOST_LANES, V), device=device), raising=False)
    monkeypatch.setattr(recordings, "FIRST_USES", 1)
    monkeypatch.setattr(ProgramEnding, "is_ready", lambda _: True)  # kernels are compiled where steps are recorded
    storage = storage_for(checkpoint.config, num_pages=8, device=device)
    state = SamplerState(num_rows=6, vocab_size=V, device=device)
    return GraphDecoder(model, storage, state, max_lanes=MOST_LANES, max_context=32, pdl=False, records_programs=True)


def engines(decoder: GraphDecoder, programs: Sequence[str | None]) -> tuple[Engine, Engine]:
    """One that records, and one that does not, with the same rows."""
    ours, theirs = ([Row(at, program, 40 + at) for at, program in enumerate(programs)] for _ in range(2))
    state = SamplerState(num_rows=6, vocab_size=V, device=decoder.state.device)
    return Engine(ours, decoder, decoder.state), Engine(theirs, None, state)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_recorded_step_draws_what_the_program_draws_without(decoder: GraphDecoder, program: str) -> None:
    ours, theirs = engines(decoder, [program, program, program])
    for _ in range(3):
        assert ours.draw([2, 0, 1], recorded=True) == theirs.draw([2, 0, 1], recorded=False)
        assert ours.noted.keys() == theirs.noted.keys()
        for row, noted in theirs.noted.items():
            assert ours.noted[row] == pytest.approx(noted)
    assert ours.state.last_tokens[:3].tolist() == theirs.state.last_tokens[:3].tolist()


@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_go_from_recorded_steps_to_others_and_back(decoder: GraphDecoder, program: str) -> None:
    ours, theirs = engines(decoder, [program, program])
    for recorded in (False, True, True, False, True, False, False, True):
        assert ours.draw([0, 1], recorded=recorded) == theirs.draw([0, 1], recorded=False)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_void_step_is_drawn_again_from_the_state_before(decoder: GraphDecoder, program: str) -> None:
    ours, theirs = engines(decoder, [program])
    for first, second in ((True, True), (True, True), (True, False), (False, True), (True, True)):
        ours.draw([0], recorded=first, takes=False)
        assert ours.draw([0], recorded=second) == theirs.draw([0], recorded=False)


@pytest.mark.parametrize("program", PROGRAMS)
def test_logits_of_other_steps_are_drawn_from_as_recorded_steps_do(decoder: GraphDecoder, program: str) -> None:
    ours, theirs = engines(decoder, [program, program, program])
    ours.draw([0], recorded=True)
    theirs.draw([0], recorded=False)
    for finished, recorded in ((True, False), (False, True), (True, False), (False, False), (True, False)):
        drawn = ours.draw([2, 0, 1], recorded=recorded, finished=finished)
        assert drawn == theirs.draw([2, 0, 1], recorded=False)
        assert ours.noted.keys() == theirs.noted.keys()
        for row, noted in theirs.noted.items():
            assert ours.noted[row] == pytest.approx(noted)
    assert ours.state.last_tokens[:3].tolist() == theirs.state.last_tokens[:3].tolist()


@pytest.mark.parametrize("program", ["state and recent tokens", "tokens of its own"])
def test_logits_of_other_steps_are_drawn_from_beside_lanes_without_the_program(
    decoder: GraphDecoder, program: str
) -> None:
    ours, theirs = engines(decoder, [program, None, program])
    ours.draw([1, 2], recorded=True)
    theirs.draw([1, 2], recorded=False)
    for _ in range(3):
        assert ours.draw([1, 0, 2], recorded=False, finished=True) == theirs.draw([1, 0, 2], recorded=False)
    assert ours.state.last_tokens[:3].tolist() == theirs.state.last_tokens[:3].tolist()


def test_a_program_that_was_never_recorded_draws_from_no_logits(decoder: GraphDecoder) -> None:
    ours, _ = engines(decoder, ["scores", None])
    lanes = [ours.rows[0].sample_lane]
    running = ours.programs.alike(lanes)
    assert running
    logits = torch.zeros((1, V), device=decoder.state.device)
    assert decoder.finish_by_program(logits, lanes, running) is None
    ours.draw([0], recorded=True)
    assert decoder.finish_by_program(logits, lanes, running) is not None
    beside = [ours.rows[0].sample_lane, ours.rows[1].sample_lane]  # with such lanes it has never run
    assert decoder.finish_by_program(torch.zeros((2, V), device=decoder.state.device), beside, running) is None


def test_a_history_that_no_table_holds_is_drawn_from_elsewhere(
    decoder: GraphDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = engines(decoder, ["whole history"])
    ours.draw([0], recorded=True)
    row = ours.rows[0]
    lane = SampleLane(row=0, position=33, num_output=30)
    running = ours.programs.alike([lane])
    assert running
    logits = logits_of(row)[None].to(decoder.state.device)
    assert decoder.finish_by_program(logits, [lane], running) is None


@pytest.mark.parametrize("program", ["state and recent tokens", "tokens of its own"])
def test_lanes_without_the_program_draw_as_they_always_do(decoder: GraphDecoder, program: str) -> None:
    ours, theirs = engines(decoder, [program, None, program])
    for _ in range(3):
        assert ours.draw([1, 0, 2], recorded=True) == theirs.draw([1, 0, 2], recorded=False)
    assert ours.state.last_tokens[:3].tolist() == theirs.state.last_tokens[:3].tolist()


def test_a_row_that_others_used_meanwhile_goes_on_where_it_was(decoder: GraphDecoder) -> None:
    ours, theirs = engines(decoder, ["state and recent tokens"] * 2)
    for engine, recorded in ((ours, True), (theirs, False)):
        for _ in range(2):
            engine.draw([0, 1], recorded=recorded)
        before, newcomer = engine.rows[0], Row(0, "state and recent tokens", 7)
        engine.assign(newcomer)
        for _ in range(2):
            engine.draw([0, 1], recorded=recorded)
        before.row = 3
        engine.assign(before)
        for _ in range(2):
            engine.draw([3, 1, 0], recorded=recorded)
    assert [row.tokens for row in ours.rows.values()] == [row.tokens for row in theirs.rows.values()]


@pytest.mark.parametrize("program", ["state and recent tokens", "whole history"])
@pytest.mark.parametrize("seed", range(2))
def test_rows_that_come_go_and_move_at_random_draw_what_they_draw_alone(
    decoder: GraphDecoder, program: str, seed: int
) -> None:
    choose = random.Random(seed)
    ours, theirs = engines(decoder, [program] * 3)
    waiting: list[tuple[Row, Row]] = []
    for number in range(24):
        if choose.random() < 0.4:  # one gives its row up, and another takes it, or the same one elsewhere
            row = choose.randrange(3)
            waiting.append((ours.rows[row], theirs.rows[row]))
            fresh = Row(row, program, 100 + number), Row(row, program, 100 + number)
            pair = waiting.pop(choose.randrange(len(waiting))) if choose.random() < 0.6 else fresh
            for engine, entering in zip((ours, theirs), pair, strict=True):
                entering.row = row
                engine.assign(entering)
        places = choose.sample(range(3), choose.randint(1, 3))
        if choose.random() < 0.25:
            ours.draw(places, recorded=choose.random() < 0.6, takes=False)
        recorded = choose.random() < 0.6
        finished = number > 0 and not recorded and choose.random() < 0.6
        drawn = ours.draw(places, recorded=recorded or number == 0, finished=finished)
        assert drawn == theirs.draw(places, recorded=False), number


def test_a_program_is_recorded_after_some_uses_and_when_nothing_waits(
    decoder: GraphDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "FIRST_USES", 3)
    ours, _ = engines(decoder, ["scores"])
    row = ours.rows[0]
    staged = decoder.stage([row.lane])
    running = ours.programs.alike([row.sample_lane])
    assert staged is not None
    assert running
    MadeUp.logits = logits_of(row)[None].to(decoder.state.device)
    for _ in range(2):
        assert decoder.draw_by_program(staged, running) is None
        decoder.rest()
    assert decoder.draw_by_program(staged, running) is None
    assert decoder.draw_by_program(staged, running) is None
    decoder.rest()
    assert decoder.draw_by_program(staged, running) is not None


def test_a_program_is_recorded_once_its_kernels_are_compiled(
    decoder: GraphDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "LAST_USES", 3)
    asked: list[ProgramEnding] = []
    ours, _ = engines(decoder, ["scores"])
    row = ours.rows[0]
    staged, running = decoder.stage([row.lane]), ours.programs.alike([row.sample_lane])
    assert staged is not None
    assert running
    MadeUp.logits = logits_of(row)[None].to(decoder.state.device)
    with monkeypatch.context() as patch:
        patch.setattr(ProgramEnding, "is_ready", lambda ending: asked.append(ending))
        for _ in range(5):
            assert decoder.draw_by_program(staged, running) is None
            decoder.rest()
    assert len(set(asked)) == 1
    decoder.rest()
    assert decoder.draw_by_program(staged, running) is not None


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("is_alone", [True, False])
def test_compiling_touches_no_sequence(device: torch.device, program: str, is_alone: bool) -> None:
    source, values = PROGRAMS[program]
    table = ProgramTable(bind(source, values, V), 3, V, device, 32)
    kept = [table.numbers, table.used, table.tokens, *table.parameters.values(), *table.states.values()]
    for values_of_rows in kept:
        values_of_rows.fill_(1)
    with torch.inference_mode():
        ProgramEnding(table, is_alone=is_alone, form=FULL).warm_up()
    for values_of_rows in kept:
        rows = values_of_rows.view(4, -1)
        assert (rows[:-1] == 1).all()


def test_where_others_always_wait_a_program_is_recorded_in_the_end(
    decoder: GraphDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "LAST_USES", 4)
    ours, _ = engines(decoder, ["scores"])
    row = ours.rows[0]
    staged, running = decoder.stage([row.lane]), ours.programs.alike([row.sample_lane])
    assert staged is not None
    assert running
    MadeUp.logits = logits_of(row)[None].to(decoder.state.device)
    assert [decoder.draw_by_program(staged, running) is None for _ in range(5)] == [True] * 3 + [False] * 2


def test_the_recording_that_was_used_longest_ago_makes_room(
    decoder: GraphDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = decoder._programs
    assert programs is not None
    monkeypatch.setattr(programs._recordings, "_most", 2)
    ours, theirs = engines(decoder, ["scores", "scores", "scores"])
    recorded = []
    record = RecordedStep.record_program

    def note(step: Any, ending: ProgramEnding) -> None:
        recorded.append(step._plan.width)
        record(step, ending)

    monkeypatch.setattr(RecordedStep, "record_program", note)
    for places in ([0], [0, 1], [0], [0, 1, 2], [0], [0, 1]):
        assert ours.draw(places, recorded=True) == theirs.draw(places, recorded=False)
    assert recorded == [1, 2, 4, 2]


def test_a_program_that_cannot_be_recorded_runs_without(
    decoder: GraphDecoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = engines(decoder, ["state and recent tokens"])

    def fail(*_: object) -> None:
        raise RuntimeError("no memory for that")

    monkeypatch.setattr(RecordedStep, "record_program", fail)
    with caplog.at_level(logging.WARNING), pytest.raises(AssertionError, match="not recorded"):
        ours.draw([0], recorded=True)
    assert "no memory for that" in caplog.text
    assert ours.draw([0], recorded=False) == theirs.draw([0], recorded=False)


def test_programs_that_make_room_for_others_leave_sessions_what_is_theirs(
    decoder: GraphDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_graphs, "MOST_PROGRAMS", 1)
    ours, theirs = engines(decoder, ["state and recent tokens", "whole history"])
    for place in (0, 1, 0, 1, 0):
        assert ours.draw([place], recorded=True) == theirs.draw([place], recorded=False)
    gc.collect()
    assert ours.draw([0, 1], recorded=False) == theirs.draw([0, 1], recorded=False)


def test_how_far_back_a_program_looks_is_read_from_it() -> None:
    def seen(body: str, inputs: str = "history") -> int | None:
        return tokens_seen(bind(f"def sample(logits, {inputs}):\n    return {body}\n", {}, V).graph)

    assert seen("argmax(logits)", "key") == 0
    assert seen("argmax(logits)") == 1
    assert seen("prev", "prev") == 1
    assert seen("history[-5] + prev", "prev, history") == 5
    assert seen("history[-65]") is None
    assert seen("int(sum(history))") is None
    assert seen("argmax(counts)", "counts") is None
