"""Lanes whose tokens are not drawn by the sampler alone: by a device program, or where a guess says what it is from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from engine.drafting.acceptance import decide
from engine.drafting.judging import NO_DRAFT, guess_at
from engine.programs.runner import PreparedDraws, ProgramRunner
from engine.programs.session import Drawn, ProgramLane, ProgramSession
from engine.request import Probes
from engine.sampling.params import SamplingParams
from engine.sampling.processors import sanitize
from engine.sampling.sampler import ForcedTokens, LaneMasks, SampleLane, Sampler
from engine.sampling.state import SamplerState
from engine.scheduling.batch import RowAssignment

_Noted = Sequence[tuple[Sequence[int], Mapping[str, torch.Tensor]]]
_Probes = list[tuple[Sequence[int], Mapping[str, torch.Tensor]]]

_JUDGED_AT_ONCE = 512
"""Rows of a pass over a guess times values of its program, as memory allows."""

KEPT = "kept"
"""Under this name it is noted down how many rows of a pass over a guess stand."""

ROOM_TOKENS = 256
"""Output tokens that a program's history has room for at once."""


@dataclass(frozen=True, slots=True)
class ProgramDraws:
    """What the programs of a step made of its logits.

    Attributes:
        logits: [R, V] float32 to sample from: those of a lane may be a program's scores.
        forced: Tokens that are drawn already.
        lanes: Those that have a program, by place; of several that draw together the first.
    """

    logits: torch.Tensor
    forced: ForcedTokens | None
    lanes: Sequence[tuple[int, ProgramSession, int]]

    def tell(self, token_ids: torch.Tensor) -> None:
        """Writes the tokens of the step [R] int64 into the programs' histories."""
        if token_ids.device.type == "cpu":
            known = token_ids.tolist()
            for place, session, position in self.lanes:
                session.append_known(position, known[place])
            return
        for place, session, position in self.lanes:
            session.append(position, token_ids[place : place + 1])


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A step whose programs all read the model's own logits.

    Attributes:
        lanes: All that draw in it.
        drawing: Those that have a program; `row` is their place.
        index: Their places.
        draws: Theirs.
    """

    lanes: Sequence[SampleLane]
    drawing: Sequence[ProgramLane]
    index: torch.Tensor
    draws: PreparedDraws


class ProgramRows:
    """Which rows of device state have a program. Costs nothing while none has.

    Args:
        state: Of the rows.
        team: Threads of the native step, if it is used.
    """

    def __init__(self, state: SamplerState, team: object | None = None) -> None:
        self._state = state
        self._runner = ProgramRunner(state.vocab_size, state.device, team)
        self._sessions: dict[int, ProgramSession] = {}
        self._lanes: dict[int, int] = {}
        self._offered: set[int] = set()
        self._probes: _Probes = []
        self._prepared: _Prepared | None = None
        self._alike: tuple[tuple[int, tuple[int, ...]], list[tuple[int, ProgramSession]] | None] | None = None

    def __bool__(self) -> bool:
        return bool(self._sessions or self._offered)

    def release(self, row: int) -> None:
        """A sequence gave its row up."""
        session = self._sessions.pop(row, None)
        self._lanes.pop(row, None)
        self._offered.discard(row)
        self._prepared = self._alike = None
        if session is not None and not self._sessions:
            self._runner.let_go()

    def assign(self, taken: RowAssignment) -> SamplingParams:
        """A sequence takes a row. Returns how the sampler is to draw for it."""
        self._alike = None
        if taken.is_offered:
            self._offered.add(taken.row)
        if taken.program is None:
            return taken.params
        if taken.lane == 0:
            taken.program.begin([*taken.prompt_ids, *taken.output_ids], ROOM_TOKENS, self._state.device)
        self._sessions[taken.row], self._lanes[taken.row] = taken.program, taken.lane
        if taken.program.judges:
            return taken.params  # it is told what would be drawn by them
        return msgspec.structs.replace(taken.params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)

    def running(self, lanes: Sequence[SampleLane]) -> list[ProgramLane]:
        """Those of some lanes that have a program, by place."""
        sessions = self._sessions
        return [
            ProgramLane(sessions[lane.row], place, lane.position)
            for place, lane in enumerate(lanes)
            if lane.row in sessions
        ]

    def alike(self, lanes: Sequence[SampleLane]) -> list[ProgramLane] | None:
        """Those of a step's lanes that have a program, if it is the same one and reads the model's own logits alone.

        Args:
            lanes: All that draw in the step.

        Returns:
            None if they do not go together, or if one of the others has a guess to verify.
        """
        if any(lane.offers for lane in lanes):
            return None
        key = self._state.version, tuple([lane.row for lane in lanes])
        if self._alike is None or self._alike[0] != key:
            self._alike = key, self._running_alike(key[1])
        found = self._alike[1]
        if found is None:
            return None
        return [ProgramLane(session, place, lanes[place].position) for place, session in found]

    def _running_alike(self, rows: Sequence[int]) -> list[tuple[int, ProgramSession]] | None:
        """Places and sessions of those rows that have a program, unless they do not go together."""
        found = [(place, self._sessions[row]) for place, row in enumerate(rows) if row in self._sessions]
        if len({session.kind for _, session in found}) > 1:
            return None
        if any(session.is_joint or session.judges for _, session in found):
            return None
        return None if any(self._state[rows[place]].is_special for place, _ in found) else found

    def prepare(self, lanes: Sequence[SampleLane]) -> None:
        """Has the draws of a step ready before its logits are computed.

        What is left behind them is short, so that the threads that computed them are still awake and share the draws.

        Args:
            lanes: All that draw in it, none of them under a mask; `draw` is to be given the same.
        """
        self._prepared = None
        drawing = self.running(lanes)
        is_bare = not self._offered and not any(
            one.session.is_joint or one.session.judges or self._state[lanes[one.row].row].is_special for one in drawing
        )
        if drawing and is_bare:
            self._prepared = self._ready(lanes, drawing)

    def note(self, noted: _Noted) -> None:
        """Takes down what programs of a step noted that was drawn elsewhere."""
        self._probes = list(noted)

    def draw(
        self, sampler: Sampler, logits: torch.Tensor, lanes: Sequence[SampleLane], masks: LaneMasks | None
    ) -> ProgramDraws:
        """Runs the programs of a step. Waits for nothing.

        Args:
            sampler: Does what comes before a draw.
            logits: [R, V] float32; may be changed.
            lanes: One a row of `logits`.
            masks: What some of them may draw.
        """
        ready, self._prepared = self._prepared, None
        if ready is not None and ready.lanes is lanes and masks is None:
            self._probes = []
            told = [(one.row, one.session, one.position) for one in ready.drawing]
            return ProgramDraws(logits, self._draw_bare(logits, ready), told)
        masked = frozenset(() if masks is None else masks.lanes)
        bare: list[int] = []
        edited: list[int] = []
        judged: list[int] = []
        passed: list[int] = []
        joint: dict[ProgramSession, dict[int, int]] = {}
        for place, lane in enumerate(lanes):
            session = self._sessions.get(lane.row)
            if session is None:
                continue
            if session.is_joint:
                joint.setdefault(session, {})[self._lanes[lane.row]] = place
                continue
            if session.judges:
                (passed if session.num_rows else judged).append(place)
                continue
            is_edited = place in masked or self._state[lane.row].is_special
            (edited if is_edited else bare).append(place)
        forced: list[ForcedTokens | None] = []
        probes = self._probes = []
        offered = [place for place, lane in enumerate(lanes) if lane.offers and lane.row not in self._sessions]
        if offered:
            forced.append(self._decide(sampler.process(logits, lanes, masks, offered), lanes, offered))
        if joint:  # before anybody changes the logits
            forced += self._draw_together(sampler, logits, lanes, list(joint.values()), masks)
        if bare:
            drawing = [ProgramLane(self._sessions[lanes[at].row], at, lanes[at].position) for at in bare]
            forced.append(self._draw_bare(logits, self._ready(lanes, drawing)))
        if edited:
            forced.append(self._draw_edited(sampler.process(logits, lanes, masks, edited), lanes, edited, probes))
        if judged:
            forced.append(self._judge(sampler.process(logits, lanes, masks, judged), lanes, judged))
        forced += [self._judge_pass(lanes[place], place, probes) for place in passed]
        drawn = [one for one in forced if one is not None]
        having = (*bare, *edited, *judged, *passed, *(places[0] for places in joint.values()))
        told = [(place, self._sessions[lanes[place].row], lanes[place].position) for place in having]
        return ProgramDraws(logits, _joined(drawn), told)

    def _draw_together(
        self,
        sampler: Sampler,
        logits: torch.Tensor,
        lanes: Sequence[SampleLane],
        groups: Sequence[Mapping[int, int]],
        masks: LaneMasks | None,
    ) -> list[ForcedTokens]:
        """Programs that read several lanes: what holds for the first lane changes the logits of all, and the token."""
        masked = frozenset(() if masks is None else masks.lanes)
        edited = [one for one in groups if one[0] in masked or self._state[lanes[one[0]].row].is_special]
        forced = []
        if len(edited) < len(groups):
            groups = [one for one in groups if one not in edited]
            forced.append(self._draw_joint(logits, range(len(lanes)), lanes, groups, self._probes)[0])
        if edited:
            places = [one[lane] for one in edited for lane in range(len(one))]
            firsts = [one[0] for one in edited for _ in one]
            alike = list(lanes)
            for place, first in zip(places, firsts, strict=True):
                alike[place] = lanes[first]
            values = sampler.process(logits, alike, _spread(masks, dict(zip(places, firsts, strict=True))), places)
            at = {place: number for number, place in enumerate(places)}
            drawn, rows = self._draw_joint(values, at, lanes, edited, self._probes)
            forced.append(ForcedTokens(drawn.places, _allowed(values[self._index(rows)], drawn.token_ids)))
        return forced

    def _draw_joint(
        self,
        logits: torch.Tensor,
        rows: Mapping[int, int] | Sequence[int],
        lanes: Sequence[SampleLane],
        groups: Sequence[Mapping[int, int]],
        probes: _Probes,
    ) -> tuple[ForcedTokens, list[int]]:
        """The token of each group goes to all of its lanes, what its program notes to the last.

        Args:
            logits: What the programs read.
            rows: Where in there the lanes of the step are, by place.
            lanes: Of the step.
            groups: Places of each one's lanes, by number of the lane.
            probes: Takes what is noted.

        Returns:
            The tokens, and for each of them the row of its group's first lane.
        """
        drawing, firsts = [], []
        for group in groups:
            place, others = group[0], [rows[group[lane]] for lane in range(1, len(group))]
            drawing.append(ProgramLane(self._sessions[lanes[place].row], rows[place], lanes[place].position, others))
            firsts += [rows[place]] * len(group)
        drawn = self._runner.run(logits, drawing)
        _note(drawn, [group[one.session.num_lanes - 1] for one, group in zip(drawing, groups, strict=True)], probes)
        counts = torch.tensor([len(group) for group in groups], device=self._state.device)
        places = [group[lane] for group in groups for lane in range(len(group))]
        tokens = drawn.tokens.repeat_interleave(counts, output_size=len(places))
        return ForcedTokens(self._index(places), tokens), firsts

    def _ready(self, lanes: Sequence[SampleLane], drawing: Sequence[ProgramLane]) -> _Prepared:
        return _Prepared(lanes, drawing, self._index([one.row for one in drawing]), self._runner.prepare(drawing))

    def _draw_bare(self, logits: torch.Tensor, ready: _Prepared) -> ForcedTokens | None:
        """Programs that read the model's own logits: the sampler draws from their scores where that is quicker."""
        drawn = self._runner.draw(logits, ready.draws, defer=True)
        if drawn.probes:
            _note(drawn, [one.row for one in ready.drawing], self._probes)
        for group, scores in drawn.scores:
            if len(group) < logits.shape[0]:
                logits[[ready.drawing[at].row for at in group]] = scores
            elif scores.data_ptr() != logits.data_ptr():  # else they were written there
                logits.copy_(scores)
        if not drawn.places:
            return None
        if len(drawn.places) == len(ready.drawing):
            return ForcedTokens(ready.index, drawn.tokens)
        return ForcedTokens(ready.index[drawn.places], drawn.tokens[drawn.places])

    def _draw_edited(
        self, values: torch.Tensor, lanes: Sequence[SampleLane], places: Sequence[int], probes: _Probes
    ) -> ForcedTokens:
        """Programs that read logits after penalties, bans and masks, which must hold for what they return too."""
        drawing = [
            ProgramLane(self._sessions[lanes[place].row], at, lanes[place].position) for at, place in enumerate(places)
        ]
        drawn = self._runner.run(values, drawing)
        _note(drawn, places, probes)
        return ForcedTokens(self._index(places), _allowed(values, drawn.tokens))

    def _decide(self, values: torch.Tensor, lanes: Sequence[SampleLane], places: Sequence[int]) -> ForcedTokens:
        """Tokens where one was guessed by a draw: the guess, or another in its place. Waits for the device."""
        some = [lanes[place] for place in places]
        tokens = [
            decide(row, self._state[lane.row], lane.position, lane.offers[0])
            for row, lane in zip(values, some, strict=True)
        ]
        return ForcedTokens(self._index(places), self._index(tokens))

    def _judge(self, values: torch.Tensor, lanes: Sequence[SampleLane], places: Sequence[int]) -> ForcedTokens:
        """Programs that judge guesses, one place of each: the guess if it stands, or what comes instead."""
        drawing = []
        for at, place in enumerate(places):
            lane = lanes[place]
            session = self._sessions[lane.row]
            draft = lane.drafts[0] if lane.drafts else NO_DRAFT
            offer = lane.offers[0] if lane.offers else None
            guess = guess_at(values[at], self._state[lane.row], draft, offer, session.bound.graph.inputs)
            drawing.append(ProgramLane(session, at, lane.position, guess=guess))
        drawn = self._runner.run(values, drawing)
        return ForcedTokens(self._index(places), _allowed(values, drawn.tokens))

    def _judge_pass(self, lane: SampleLane, place: int, probes: _Probes) -> ForcedTokens:
        """A pass over a guess: all of its rows are judged at once, and the token behind those that stand is drawn.

        How many rows stand is noted down; the first one always does.
        """
        session = self._sessions[lane.row]
        count, row = session.num_rows, self._state[lane.row]
        values = torch.stack([session.rows[number] for number in range(count)])
        sanitize(values)
        drawing = []
        for at in range(count):
            draft = session.guess[at] if at < count - 1 else NO_DRAFT
            offer = session.offers[at] if at < len(session.offers) else None
            guess = guess_at(values[at], row, draft, offer, session.bound.graph.inputs)
            drawing.append(ProgramLane(session, at, lane.position - count + 1 + at, guess=guess))
        size = max(1, _JUDGED_AT_ONCE // len(session.bound.graph.nodes))
        blocks = [drawing[first : first + size] for first in range(0, count, size)]
        tokens = torch.cat([self._runner.run(values, block).tokens for block in blocks])
        kept = (tokens[:-1] == self._index(session.guess)).long().cumprod(0).sum()[None]
        probes.append(([place], {KEPT: kept[None] + 1}))
        return ForcedTokens(self._index([place]), tokens.index_select(0, kept))

    def take_probes(self) -> dict[int, Probes]:
        """What the programs of the newest draw noted down, by place. Waits for the device."""
        probes, self._probes = self._probes, []
        found: dict[int, Probes] = {}
        for places, values in probes:
            for name, rows in values.items():
                for place, row in zip(places, rows.tolist(), strict=True):
                    found.setdefault(place, {})[name] = row[0] if len(row) == 1 else row
        return found

    def _index(self, places: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(places), dtype=torch.int64, device=self._state.device)


def _allowed(values: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The tokens [R], -1 where one must not come by its row of logits [R, V]."""
    allowed = values.gather(1, tokens.clamp_min(0)[:, None]).squeeze(1) > -torch.inf
    return torch.where(allowed, tokens, -1)


def _spread(masks: LaneMasks | None, firsts: Mapping[int, int]) -> LaneMasks | None:
    """Masks of some lanes for those, by place, that are held to what holds for others."""
    rows = {} if masks is None else {place: row for row, place in enumerate(masks.lanes)}
    found = {place: rows[first] for place, first in firsts.items() if first in rows}
    return None if masks is None or not found else LaneMasks(list(found), masks.words[list(found.values())])


def _note(drawn: Drawn, places: Sequence[int], probes: _Probes) -> None:
    """Takes down what programs noted, by the places that their lanes have in the step."""
    probes += [([places[at] for at in group], found) for group, found in drawn.probes]


def _joined(forced: Sequence[ForcedTokens]) -> ForcedTokens | None:
    if len(forced) < 2:
        return forced[0] if forced else None
    return ForcedTokens(torch.cat([one.places for one in forced]), torch.cat([one.token_ids for one in forced]))
