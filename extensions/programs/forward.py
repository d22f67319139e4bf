"""The forward pass as a script has it: contexts that go on together, and what draws their token; see the stubs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from engine.drafting.limits import MAX_DRAFT_TOKENS
from engine.forward.validation import MAX_LANES
from engine.programs.purposes import MASK, SAMPLE
from engine.programs.verify_rules import VERIFY_RULES
from engine.request import Probe, ProgramSpec, Readout, SiteChange
from extensions.programs.adapters import read_change
from extensions.programs.ahead import single_draw
from extensions.programs.attention import AttentionAsked, ScriptAttention, read_attention
from extensions.programs.drafting import read_proposals
from extensions.programs.drawing import Drawn, EndPass
from extensions.programs.faults import fault, invalid
from extensions.programs.looking import RowPass, keeps_nothing
from extensions.programs.options import Asked
from extensions.programs.rows import Rows, integers, read_fold, read_geometry, read_rows
from extensions.programs.samplers import ScriptProgram, make_program
from extensions.programs.stepping import NO_TOKEN, ScriptDistribution, read_mass, read_top

if TYPE_CHECKING:
    from extensions.programs.contexts import ScriptContext
    from extensions.programs.scope import RunScope


class ScriptPass:
    """What came of one pass; see `Pass` in the stubs."""

    def __init__(
        self,
        token: int | None,
        probes: Mapping[str, Probe],
        rows: Sequence[ScriptDistribution] = (),
        folded: Sequence[int] = (),
        attention: Sequence[ScriptAttention] = (),
    ) -> None:
        self.token = NO_TOKEN if token is None else token
        self.probes = dict(probes)
        self.rows = list(rows)
        self.folded = list(folded)
        self.attention = list(attention)


class ScriptForward:
    """One pass, put together call by call.

    Args:
        scope: The run.
    """

    def __init__(self, scope: RunScope) -> None:
        self._scope = scope
        self._contexts: list[ScriptContext] = []
        self._program: ScriptProgram | None = None
        self._q: object = None
        self._rows: Rows | None = None
        self._changes: Mapping[int, Sequence[SiteChange]] = {}
        self._fold: object = "none"
        self._readout = Readout(64)
        self._attention: AttentionAsked | None = None

    # -- what a script may call -------------------------------------------------------------------------------------

    async def embed_next(self, contexts: Sequence[ScriptContext]) -> None:
        """Each lane is a context and reads the token that this is about to read."""
        self._contexts, self._rows, self._changes = self._checked_contexts(contexts), None, {}

    async def embed(self, tokens: Sequence[int], indptr: Sequence[int] | None = None) -> None:
        """Tokens of all lanes, end to end."""
        self._rows = read_rows(tokens, indptr)

    async def state(self, contexts: Sequence[ScriptContext], geometry: Mapping[str, Any] | None = None) -> None:
        """What the lanes follow, and where their rows are."""
        rows = self._embedded("state")
        found = read_geometry(geometry)
        self._contexts = self._checked_contexts(contexts)
        self._rows = replace(rows, **found)
        self._fold = "none" if geometry is None else geometry.get("fold", "none")

    async def mask(self, rows: Sequence[Any] | ScriptProgram | str) -> None:
        """What each row sees."""
        if isinstance(rows, str) and "def " in rows:
            rows = make_program(rows, {}, self._scope.engine.info.vocab_size)
        if isinstance(rows, ScriptProgram):
            rows.check(MASK)
            assert rows.bound is not None
            self._rows = replace(self._embedded("mask"), mask=None, rule=rows.bound)
            return
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Sequence):
            raise invalid("rows must be a list with the mask of each row, or a program with a function `mask`")
        self._rows = replace(self._embedded("mask"), mask=list(rows), rule=None)

    async def adapter(
        self,
        site: str,
        adapter: ScriptProgram | str,
        *,
        layers: Sequence[int] | None = None,
        lanes: Sequence[int] | None = None,
    ) -> None:
        """What an adapter does at a site: to rows, or to what lanes read from here on."""
        num_lanes = len(self._contexts) if self._rows is None else self._rows.num_lanes
        if not num_lanes:
            raise invalid("adapter is of lanes: await fwd.embed_next(contexts) or fwd.embed(tokens) first")
        change = read_change(self._scope, site, adapter, layers)
        chosen = range(num_lanes) if lanes is None else integers(lanes, "lanes")
        if any(not 0 <= lane < num_lanes for lane in chosen):
            raise invalid(f"lanes are numbered from 0 to {num_lanes - 1}")
        before = self._changes if self._rows is None else self._rows.changes
        changes = {**before, **{lane: [*before.get(lane, ()), change] for lane in chosen}}
        if self._rows is None:
            self._changes = changes
        else:
            self._rows = replace(self._rows, changes=changes)

    async def readout(self, rows: Sequence[int], *, top: int | Literal["all"] = 64, need_mass: float = 0.0) -> None:
        """Which rows are read."""
        num_top = read_top(top, self._scope.engine.info.vocab_size, allows_all=True)
        self._readout = Readout(num_top, read_mass(need_mass))
        self._rows = replace(self._embedded("readout"), readout=integers(rows, "rows"))

    def _embedded(self, what: str) -> Rows:
        if self._rows is None:
            raise invalid(f"{what} is of rows: await fwd.embed(tokens) first")
        return self._rows

    def _checked_contexts(self, contexts: Sequence[ScriptContext]) -> list[ScriptContext]:
        from extensions.programs.contexts import ScriptContext  # both name each other

        if isinstance(contexts, str | bytes | Mapping) or not isinstance(contexts, Sequence):
            raise invalid("contexts must be a list of contexts")
        found = list(contexts)
        if not found or not all(isinstance(one, ScriptContext) and one.scope is self._scope for one in found):
            raise invalid("contexts must be contexts of this program, at least one")
        if len(found) > MAX_LANES:
            raise invalid(f"contexts has {len(found)} lanes, at most {MAX_LANES} go on together")
        if len(set(map(id, found))) < len(found):
            raise invalid("a context can only be one of the lanes: fork it for another")
        return found

    async def epilogue(
        self,
        program: ScriptProgram | str,
        q: Sequence[Mapping[int, float]] | Mapping[int, float] | None = None,
    ) -> None:
        """This program draws the token, or judges the guess that the rows are."""
        if isinstance(program, str) and program in VERIFY_RULES:
            program = make_program(VERIFY_RULES[program], {}, self._scope.engine.info.vocab_size)
        elif isinstance(program, str) and "def " in program:
            program = make_program(program, {}, self._scope.engine.info.vocab_size)
        if not isinstance(program, ScriptProgram):
            raise invalid("program must be what lm.program returned, or the text of a program")
        if not program.judges:
            program.check(SAMPLE)
            if q is not None:
                raise invalid("q is what a guess was drawn from: it is for a program that judges one (verify)")
        self._program, self._q = program, q

    async def on_attention(
        self,
        program: ScriptProgram | str | None = None,
        *,
        reduce: Literal["mean", "max"] = "mean",
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        total: bool = False,
        by_layer: bool = False,
        top: int = 64,
    ) -> None:
        """What the rows read attend to is told too."""
        self._attention = read_attention(
            self._scope,
            program,
            reduce=reduce,
            layers=layers,
            heads=heads,
            total=total,
            by_layer=by_layer,
            top=top,
        )

    async def run(self, *, seed: int | None = None) -> ScriptPass:
        """One pass."""
        asked = self._attention
        if self._rows is None:
            drawn = await self.draw(single_draw(self._scope, seed), attention=asked)
            before = [context.history.live.token_ids[:-1] for context in self._contexts]
            attention = [] if asked is None else asked.read(drawn.attention, before)
            probes = {name: values[0] for name, values in drawn.probes.items()}
            return ScriptPass(drawn.tokens[0], probes, attention=attention)
        looked = await self._row_pass(self._rows).run(self._scope, _checked_seed(seed))
        is_whole = self._readout.top == -1
        rows = [ScriptDistribution(self._scope, one, is_whole=is_whole) for one in looked.distributions]
        attention = [] if asked is None else asked.read(looked.attention, looked.histories)
        return ScriptPass(looked.token, looked.probes, rows, looked.folded, attention)

    # -- what the run does ------------------------------------------------------------------------------------------

    @property
    def is_look(self) -> bool:
        """It leaves its contexts as they are."""
        return self._rows is not None and keeps_nothing(self._fold)

    async def draw(self, asked: Asked, *, emit: bool = False, attention: AttentionAsked | None = None) -> Drawn:
        """Passes until a stop, without the script in between.

        Raises:
            ValueError: The pass lacks contexts or a program, or an argument is out of its range.
            EngineError: The engine refuses it or gives it up; the histories are as they were.
        """
        if self._rows is not None:
            raise invalid("only a pass of embed_next can run again and again: its tokens follow each other")
        if self._attention is not attention:
            raise invalid("attention is told of single passes: run or submit a pass that has on_attention")
        ends = EndPass(
            contexts=self._contexts,
            changes=self._changes,
            program=self._checked(),
            attention=None if attention is None else attention.spec,
        )
        return await ends.run(self._scope, asked, emit=emit)

    def _row_pass(self, rows: Rows) -> RowPass:
        if not self._contexts:
            raise invalid("the pass has no contexts: await fwd.state(contexts)")
        program = self._program
        if program is not None and program.judges:
            return self._guess_pass(rows, program)
        if program is not None and program.num_lanes > len(rows.read):
            raise fault(
                "program_invalid", f"it reads lanes[{program.num_lanes - 1}], and {len(rows.read)} rows are read"
            )
        return RowPass(
            contexts=self._contexts,
            rows=rows,
            readout=self._readout,
            fold=read_fold(self._fold, rows.num_lanes),
            program=None if program is None else program.spec,
            attention=None if self._attention is None else self._attention.spec,
        )

    def _guess_pass(self, rows: Rows, program: ScriptProgram) -> RowPass:
        """One whose rows are a token and a guess behind it."""
        if rows.num_lanes > 1 or rows.readout is not None or rows.slots is not None:
            raise invalid("a guess is judged in one lane, all of whose rows are read in order: no readout, no slots")
        if len(rows.tokens) > MAX_DRAFT_TOKENS + 1:
            raise invalid(f"a guess of {len(rows.tokens) - 1} tokens is judged, at most {MAX_DRAFT_TOKENS} can be")
        if program.bound is not None and program.bound.graph.states:
            raise fault("program_invalid", "all rows of a pass are judged at once, so that there is no state")
        return RowPass(
            contexts=self._contexts,
            rows=replace(rows, readout=list(range(len(rows.tokens)))),
            readout=self._readout,
            fold=read_fold(self._fold, 1),
            program=program.spec,
            proposals=read_proposals(rows.tokens[1:], self._q, self._scope.engine.info.vocab_size),
        )

    def _checked(self) -> ProgramSpec:
        if not self._contexts:
            raise invalid("the pass has no lanes: await fwd.embed_next(contexts)")
        if self._program is None:
            raise invalid("nothing draws the token: await fwd.epilogue(program)")
        if self._program.judges:
            raise invalid("a guess is judged behind rows: await fwd.embed(tokens)")
        if self._program.num_lanes > len(self._contexts):
            have, reads = len(self._contexts), self._program.num_lanes
            raise fault("program_invalid", f"it reads lanes[{reads - 1}], and the pass has {have} lane(s)")
        return self._program.spec


def _checked_seed(seed: object) -> int | None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise invalid("seed must be a whole number")
    return seed
