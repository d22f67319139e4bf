"""What is asked of the engine and what it answers: plain messages, the same in one process and between two."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from engine.forward.shapes import Shape
from engine.sampling.params import SamplingParams


class FinishReason(enum.StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ConstraintKind(enum.StrEnum):
    """How the text of a constraint is written."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"


class Pooling(enum.StrEnum):
    """Which hidden states make the embedding of a prompt."""

    MEAN = "mean"
    LAST = "last"


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Where a language begins amid free text: the output is free up to there, and again once a text of it is whole.

    The grammar must take any text that has none of these beginnings, and any text behind what it demands.

    Attributes:
        markers: ASCII texts that begin it anywhere, special tokens or not. Other special tokens are no text here.
        line: A regular expression of ASCII texts that begin it at the beginning of a line, and of all their
            beginnings; matched whole. The first character is a brace or a bracket.
        closers: Texts that count as white space at the beginning of a line.
        thought: Markers of the thinking that an answer may begin with, in which all is free; empty for none.
        in_thought: The thinking has begun already.
    """

    markers: tuple[str, ...] = ()
    line: str = ""
    closers: tuple[str, ...] = ()
    thought: tuple[str, ...] = ()
    in_thought: bool = False


class ConstraintSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A language that the output must belong to; compiled before anything is computed, or refused.

    Attributes:
        kind: What `source` is.
        source: A JSON schema as JSON text (keys in the order in which they are to be written), a regular expression,
            a JSON array of strings to choose from, or a grammar: Lark as llguidance reads it (`%json {...}` holds a
            schema inside it), or GBNF; empty for `JSON_OBJECT`.
        strict: Refuse a schema with keywords that cannot be enforced instead of leaving them out.
        compact: JSON without any whitespace between its tokens; else at most one space, or one newline and its
            indent.
        whitespace_pattern: A regular expression for the whitespace between JSON tokens; wins over `compact`.
        frame: A Lark grammar of the whole output in which `@answer` stands for this language, for what may come before
            it; empty for the language alone.
        opening: The output is free until it begins with this; None for what is held from the first token on.
        param: The client's field to blame when this cannot be compiled.
        schema_params: The client's fields that hold the schemas of the rules `arguments_0`, `arguments_1` and so on of
            a Lark grammar, to blame if it is one of them.
    """

    kind: ConstraintKind
    source: str = ""
    strict: bool = False
    compact: bool = False
    whitespace_pattern: str | None = None
    frame: str = ""
    opening: Opening | None = None
    param: str = "constraint"
    schema_params: tuple[str, ...] = ()


class Readout(msgspec.Struct, frozen=True, array_like=True):
    """What is wanted of a distribution.

    Attributes:
        top: Likeliest tokens at least; -1 for the whole vocabulary.
        need_mass: As many more as make up this probability, 0..1.
    """

    top: int
    need_mass: float = 0.0


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """What a token was drawn from: after constraint, bias, penalties and bans, before temperature and truncation.

    Attributes:
        token_ids: Little-endian int32, likeliest first; for the whole vocabulary 0 to V - 1.
        logprobs: Little-endian float32, natural logarithms of the same tokens' probabilities.
        omitted_mass: Probability of all other tokens together.
        entropy: Of the whole distribution, in nats.
    """

    token_ids: bytes
    logprobs: bytes
    omitted_mass: float
    entropy: float


class Matrix(msgspec.Struct, frozen=True):
    """A matrix of numbers that a device program is given.

    Attributes:
        rows, columns: How many.
        values: Little-endian float32, row by row.
    """

    rows: int
    columns: int
    values: bytes


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A device program that draws tokens instead of the sampler, and what it is given; see `engine.programs`.

    Attributes:
        source: The program.
        parameters: Values of its own parameters: numbers, or a list of one number per token of the vocabulary. Those of
            an adapter can be matrices too, and names of loaded adapters' parts.
        param: The client's field to blame when it is no program.
    """

    source: str
    parameters: dict[str, bool | int | float | str | list[float] | Matrix] = {}
    param: str = "sampler"


class SiteChange(msgspec.Struct, frozen=True, array_like=True):
    """What an adapter does to the rows of a pass at one site of the model's layers.

    Attributes:
        site: One of `engine.adapters.sites.SITES`.
        adapter: A loaded adapter does what it does there; empty for the model alone, or if there is a program.
        program: An expression does it.
        layers: In which layers; empty for all.
    """

    site: str
    adapter: str = ""
    program: ProgramSpec | None = None
    layers: list[int] = []


Probe = bool | int | float | list[bool | int | float]
"""What a device program noted down under one name, in one step."""

Probes = dict[str, Probe]
"""All that it noted down in one step, by name."""


class AttentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of the attention of rows: how much of it, 0..1, goes to each slot of their history.

    Attributes:
        layers: Which layers count; empty for all.
        heads: Which query heads of them; empty for all.
        reduce: What is made of those: their mean, or the greatest of them.
        total: One sum over all rows of a lane, instead of each.
        by_layer: Each layer's own, one behind the other, instead of what is made of all.
    """

    layers: list[int] = []
    heads: list[int] = []
    reduce: Literal["mean", "max"] = "mean"
    total: bool = False
    by_layer: bool = False


class LanePass(msgspec.Struct, frozen=True, array_like=True):
    """What is wanted of the rows of one lane.

    Attributes:
        rows: Slots of its history, rising, whose logits are read out.
        shape: Positions and sights of its last rows; None where they are those of any history. Without positions it
            says from where on a lane that goes on is changed: its last token.
        changes: What adapters do to its rows, the history before them left as it is; needs a shape. Of a lane that goes
            on, to those of the tokens that are drawn as well.
        proposals: Of a guess that is judged: what the token of each row but the first was drawn from; none if they were
            not.
    """

    rows: list[int]
    shape: Shape | None = None
    proposals: list[Proposal] = []
    changes: list[SiteChange] = []


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to continue it.

    Attributes:
        request_id: Unique among requests in flight; made by our own caller, never taken from a client.
        prompt_ids: Token ids, at least one, all inside the vocabulary; none if there is a `context_id`.
        sampling: How each of the `n` sequences is drawn.
        n: Sequences to generate from the one prompt; each has its own random stream.
        account: Opaque label that the KV meter charges.
        salt: Prefix pages are shared only among requests with the same salt.
        priority: Lower enters sooner.
        prompt_logprobs: None for none; otherwise this many alternatives for each prompt token.
        logprobs_start: First position whose log-probability is wanted; those before it may come from the cache.
        constraint: What the output of each sequence must be; a sequence ends when it can only end.
        context_id: The held context to go on from instead of a prompt: `prompt_ids` must be empty then, and `n` 1. It
            gets every token that is given out.
        num_given: The last so many tokens of the context are the output's first: they count as such, for `max_tokens`
            too, and are not given out again. For a request that is gone on with after it was cut off.
        lane_ids: More held contexts: `program` reads their logits beside the first's, in the same step, and all get
            every token that it draws.
        passes: What is read out of each lane's rows: their distributions as `readout` says, or, if there is a program,
            their logits, as what it reads. Lanes without rows whose ends a program reads can have changes too.
        stepped: Pause after each draw until `Advance` says which token to take; only on a held context.
        readout: For a stepped request: what is wanted of the distribution of each proposal.
        program: Draws the tokens of each sequence, after penalties, biases, bans and the constraint; temperature and
            truncation are its own business.
        adapter: Name of the adapter that changes the model for it; empty for none. A held context has its own.
        drafter: Guesses tokens that are then verified together; None for none. Nothing that is drawn depends on it.
        pooling: Answer with an embedding of the prompt: the mean of the hidden states of its tokens after the final
            norm, or that of its last token. Nothing is generated then, so `max_tokens` must be 0 and `n` 1.
        attention: Tell what the rows of a pass attend to; without `passes` the last row of each lane, of one draw.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    context_id: str = ""
    lane_ids: list[str] = []
    passes: list[LanePass] = []
    stepped: bool = False
    readout: Readout | None = None
    num_given: int = 0
    n: int = 1
    account: str = ""
    salt: str = ""
    priority: int = 0
    prompt_logprobs: int | None = None
    logprobs_start: int = 0
    constraint: ConstraintSpec | None = None
    pooling: Pooling | None = None
    program: ProgramSpec | None = None
    adapter: str = ""
    drafter: DrafterSpec | None = None
    attention: AttentionSpec | None = None


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """What a guessed token was drawn from: probabilities, or weights in proportion to them, of all that it could be.

    Attributes:
        token_ids: Little-endian int32, each once.
        weights: Little-endian float64 of the same tokens, none negative.
    """

    token_ids: bytes
    weights: bytes


class DrafterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Guess the next tokens, and verify several in one step; what is drawn is the same without.

    Guesses are looked up in what is there already, unless `given` or `program` say where else they come from. Where a
    guess says what it was drawn from, it is accepted or replaced by chance (arXiv 2211.17192): then the distribution of
    what is drawn is the same, and not each token.

    Attributes:
        given: The caller guesses: after each draw the request waits for its `Guess`. Only on a held context.
        program: A device program whose `propose` guesses, see `engine.drafting.program`.
        max_tokens: Most tokens guessed at a time.
        min_match, max_match: Shortest and longest run of last tokens that is looked for.
        reference_ids: A text that the output is expected to resemble, looked up before the history.
        param: The client's field to blame.
    """

    max_tokens: int = 16
    min_match: int = 3
    max_match: int = 6
    reference_ids: list[int] = []
    given: bool = False
    program: ProgramSpec | None = None
    param: str = "drafter"


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The model's own log-probability of one token and of the likeliest ones.

    Attributes:
        logprob: Natural logarithm, finite.
        top_ids: Likeliest token ids, best first, as many as asked for.
        top_logprobs: Their log-probabilities, same order.
        rank: 1 if the token was the likeliest.
    """

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]
    rank: int


class TokenEvent(msgspec.Struct, array_like=True, kw_only=True):
    """News of one sequence of a request: tokens, an end, or both.

    Attributes:
        request_id: The request.
        index: Which of its `n` sequences.
        token_ids: New tokens in order; includes the stop token if one ended the sequence.
        logprobs: One entry a token if asked for, else empty.
        finish_reason: Set on the last event of the sequence only.
        stop_token_id: The token that ended it, when one did.
        num_cached_tokens: Prompt tokens taken from the prefix cache; set on the first event of the sequence.
        prompt_logprobs: On the first event if asked for: one entry a prompt token after the first.
        error: Set when `finish_reason` is ERROR; or why a token chosen for a stepped request cannot be taken: it stays
            paused then.
        embedding: On the last event if asked for: `hidden_size` little-endian float32 values, not normalised.
        proposal: Of a stepped request: the token drawn, not taken yet.
        distribution: What it was drawn from, if asked for.
        further: What will be proposed next, with what it was drawn from, as long as each is taken.
        num_drafted, num_accepted: Tokens guessed for these, and those of them that were right.
        kv_kib_ms: What was charged so far for the pages of this sequence, or of its held context since that was
            opened, in KiB times milliseconds.
        rows: On the last event if asked for: distributions behind the rows of a pass.
        probes: One entry a token if a device program drew them and notes something down.
        attention: With the end of a pass if asked for: what its rows attend to, lane by lane, or each lane's sum, as
            little-endian float32 of the first positions of the history; beyond them it is 0.
        num_wanted: Of a request whose caller guesses: most tokens that its guess may have now; it waits for that.
    """

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] = []
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    error: ErrorReport | None = None
    embedding: bytes | None = None
    proposal: int | None = None
    distribution: Distribution | None = None
    kv_kib_ms: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    probes: list[Probes] = []
    rows: list[Distribution] = []
    num_wanted: int = 0
    further: list[tuple[int, Distribution | None]] = []
    attention: list[bytes] = []


class ErrorReport(msgspec.Struct, frozen=True, array_like=True):
    """An engine error on its way through a process boundary.

    Attributes:
        kind: Class name in `engine.errors`.
        message: Text for people.
        fields: Constructor arguments that rebuild it, by name.
    """

    kind: str
    message: str
    fields: dict[str, int | str | None] = {}


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's authors recommend (`generation_config.json`); None where they say nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that requests can name.

    Attributes:
        name: What they call it.
        kind: `lora`, `dora` or `ia3`.
        rank: Greatest rank of its products; 0 of an IA3.
        digest: Hex digest of its content.
    """

    name: str
    kind: str
    rank: int
    digest: str


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a running engine is; constant for one life of its process.

    Attributes:
        epoch: Differs for every start of an engine process.
        model_path: Directory or file it was loaded from.
        architecture: Family, e.g. `llama`.
        fingerprint: Hex digest of configuration and weights; part of every prefix key.
        vocab_size: Ids are 0..vocab_size-1.
        hidden_size: Width of its hidden states, and thus of embeddings.
        eos_token_ids: The model's own end ids.
        max_model_len: Most tokens of one sequence, prompt and output.
        page_size: Tokens a KV page.
        num_pages: Pages in the pool.
        page_bytes: Bytes of one page over all layers.
        host_pages: Pages of host memory for leased contexts whose pages others need.
        incarnation: Rises with every start of an engine process: charges count from its start.
        device: `cpu`, `cuda:0`...
        step: What computes a step: `torch`, or `native` and the form of it, e.g. `native avx512`.
        dtype: Of the weights.
        kv_dtype: Of K and V; `int8` and `fp8` have scales beside them.
        attention_backend: Name of the chosen backend; `native` where the native step attends by itself.
        defaults: Sampling defaults of the model.
        num_parameters: Weights' element count.
        load_s: Seconds it took to load.
        num_layers, num_heads: Of the decoder; query heads.
        reads_attention: Passes can be asked what their rows attend to.
        generates: It can continue a text; false for a model without a head, which only makes embeddings.
        adapters: Those loaded with it.
        sites: Numbers that go into each site of a layer and come out of it, by name; empty where passes bring no
            adapters.
    """

    epoch: str
    model_path: str
    architecture: str
    fingerprint: str
    vocab_size: int
    hidden_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    page_size: int
    num_pages: int
    page_bytes: int
    device: str
    step: str
    dtype: str
    kv_dtype: str
    attention_backend: str
    defaults: GenerationDefaults
    num_parameters: int
    load_s: float
    generates: bool = True
    adapters: tuple[AdapterInfo, ...] = ()
    sites: dict[str, tuple[int, int]] = {}
    host_pages: int = 0
    incarnation: int = 0
    num_layers: int = 0
    num_heads: int = 0
    reads_attention: bool = False

    @property
    def page_kib(self) -> int:
        """KiB that one page is charged as."""
        return -(-self.page_bytes // 1024)

    def adapter_of(self, model: str | None) -> str:
        """The adapter that is served as a model of that name; empty if it is no adapter's."""
        return next((one.name for one in self.adapters if one.name == model), "")

    @property
    def pool_tokens(self) -> int:
        """Tokens the whole KV pool can hold."""
        return self.num_pages * self.page_size

    @property
    def limit_tokens(self) -> int:
        """Most tokens any one sequence can ever have here: the context or the pool, whichever is smaller."""
        return min(self.max_model_len, self.pool_tokens)
