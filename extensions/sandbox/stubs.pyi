"""What a program sees, as types. Every script is checked against this file before it runs.

Import it for an editor or a type checker of your own:

    from typing import TYPE_CHECKING

    if TYPE_CHECKING:
        from extensions.sandbox.stubs import LM, Request

    async def main(request: Request, lm: LM): ...

The names are known to a script without any import, and so are the modules `asyncio`, `json`, `math` and `re`.

Errors arrive as built-ins whose text is `code: what happened`:

- `ValueError`: `invalid_argument`, `constraint_invalid`, `program_invalid`, `fingerprint_mismatch`
- `MemoryError`: `kv_exhausted`, `limit_exceeded`
- `TimeoutError`: `receive_timeout`, `tool_timeout`
- `PermissionError`: `tool_denied`, `egress_denied`, `capability_denied`
- `LookupError`: `extension_not_found`, `tool_not_found`, `prefix_not_found`
- `RuntimeError`: `server_busy`, `capability_missing`, `context_lost`, `quota_exceeded`, `lease_revoked`, `child_failed`
- `RuntimeError`: `prefix_lost`, `store_unavailable`, `tool_failed`, `tool_outcome_unknown`

A limit of the run itself (time, memory, tokens, calls) is not an error that a script can catch: it ends the run.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, overload

class Request:
    """The request that the program answers."""

    messages: list[dict[str, Any]]
    """Chat messages; empty for a text completion."""
    prompt: str | list[int]
    """Text or token ids of a text completion; empty for a chat."""
    model: str
    """The name that the client used."""
    params: dict[str, Any]
    """The client's sampling fields that were set: `max_tokens`, `temperature`, ..."""
    tools: list[dict[str, Any]]
    """The tools that the client offers."""
    args: dict[str, Any]
    """The client's arguments, checked against `EXTENSION["params"]`, defaults filled in."""
    stream: bool
    """Whether the client reads while the program runs."""
    id: str
    """Of the run."""

class JsonSchemaConstraint(TypedDict):
    """JSON that fits a schema."""

    json_schema: Mapping[str, Any] | bool

class RegexConstraint(TypedDict):
    """Text that a regular expression matches as a whole."""

    regex: str

class GrammarConstraint(TypedDict):
    """Text of a language: a grammar in Lark's form or GBNF."""

    grammar: str

class ChoiceConstraint(TypedDict):
    """One of some texts."""

    choice: Sequence[str]

class ToolsConstraint(TypedDict):
    """One call of a tool, or a list of calls, with arguments that fit the tools' schemas."""

    tools: Sequence[str | Mapping[str, Any]]
    """Names of tools of the request or the server, or functions in OpenAI's form."""

class WantedCall(TypedDict):
    """A call that the model asks for."""

    id: str
    name: str
    arguments: dict[str, Any]

class Constraint:
    """What a text must be, made by `lm.constraint` and used as often as wanted."""

class Program:
    """A device program with its parameters, made by `lm.program` and used as often as wanted."""

Constrain = Constraint | JsonSchemaConstraint | RegexConstraint | GrammarConstraint | ChoiceConstraint | ToolsConstraint

class Drafter(TypedDict, total=False):
    """Guesses tokens from where the last ones stood before, in the history or in a text that the answer resembles."""

    type: Literal["prompt_lookup", "none"]
    max_tokens: int
    """Most tokens guessed at a time, 1 to 64."""
    min_match: int
    """Fewest last tokens that must have stood there, 1 to 32."""
    max_match: int
    """Most that are looked for, 1 to 32."""
    reference: Sequence[int]
    """Token ids of a text that the answer is expected to resemble."""

Guess = Sequence[int] | tuple[Sequence[int], Sequence[Mapping[int, float]] | Mapping[int, float] | None] | None
"""Token ids, or a pair: the ids, and for each, or for all of them, the probabilities it was drawn from, by token id."""

class Drafted(NamedTuple):
    """What came since the guess before, and how many tokens the next may have."""

    tokens: list[int]
    wanted: int
    """0 at the end."""

class Usage(NamedTuple):
    """Tokens of one generation."""

    prompt_tokens: int
    """All that it stood on."""
    cached_tokens: int
    """Those of them that did not need computing."""
    completion_tokens: int
    """What was generated, the stop token included."""
    drafted_tokens: int = 0
    """Tokens that a drafter guessed ahead."""
    accepted_tokens: int = 0
    """Those of them that were right."""

class TokenLogprob(NamedTuple):
    """One token of a text."""

    token: int
    text: str
    logprob: float
    top: list[Candidate]
    """The likeliest tokens at its place, best first; empty unless more than 0 were asked for."""

class Candidate(NamedTuple):
    """A token that could come next."""

    token: int
    text: str
    logprob: float
    """Natural logarithm of its probability after constraint and penalties, before temperature."""

class Completion:
    """What one call of `generate` made."""

    text: str
    """Without stop strings and special tokens."""
    tokens: list[int]
    """Every token that the history has gained, the stop token included."""
    finish_reason: Literal["stop", "length"]
    """`length` if it ended because `max_tokens` were there."""
    mean_logprob: float
    """Mean log-probability of its tokens under the model; 0.0 if there are none."""
    logprobs: list[TokenLogprob]
    """Of each token, if asked for."""
    usage: Usage
    exec_path: Literal["fused", "device", "host"]
    """Which lane computed it."""
    tool_calls: list[WantedCall]
    """The calls in it, where there are tools that it could call; only those that are whole."""
    probes: dict[str, list[Any]]
    """What the device program that drew it noted down (`probe.x = ...`): one value a token, by name."""

class Distribution:
    """What the model expects next."""

    candidates: list[Candidate]
    """Likeliest first; empty if all tokens were asked for."""
    logprobs: list[float]
    """Of every token of the vocabulary, by id, if all were asked for."""
    omitted_mass: float
    """Probability of all tokens that are not among the candidates."""
    entropy: float
    """Of the whole distribution, in nats."""

class Step:
    """Where a generation stands: what could come next, or its end."""

    finished: bool
    """True once there is no next token; then `token` is -1 and there are no candidates."""
    finish_reason: Literal["stop", "length"] | None
    """Why, once finished."""
    token: int
    """What the sampler would take."""
    text: str
    """Text of that token alone."""
    entropy: float
    """Of the whole distribution, in nats."""
    omitted_mass: float
    """Probability of all tokens that are not among the candidates."""
    candidates: list[Candidate]
    """Likeliest first, as many as `top` says."""

class Generation:
    """A generation whose every step the script decides."""

    async def step(self, n: int = 1, *, choose: int | None = None) -> Step:
        """Takes the sampler's own choice for the step before, unless one was chosen, and shows the next.

        With `n` above 1 the sampler takes the tokens between; what is shown is the last of the n. `choose` is
        `await gen.choose(token)` before it, in the same call: the quick form of a loop that decides on every token.
        Calls at once take their turns, in the order in which they were made.
        """

    async def choose(self, token: int) -> None:
        """Says which token comes next instead of the one that `step` showed."""

    async def ban(self, tokens: Sequence[int]) -> None:
        """Forbids tokens for the rest of the generation."""

    async def stop(self) -> None:
        """Ends it; the step that was shown last is not taken."""

class Drafting:
    """A generation that waits for guesses of its next tokens, which are verified together.

    `generate(drafter=propose)` is `seen = await drafting.next()`, and as long as `seen.wanted` is not 0,
    `seen = await drafting.next(propose(...))`.
    """

    history: list[int]
    """Token ids that it began with."""

    async def next(
        self, tokens: Sequence[int] = (), q: Sequence[Mapping[int, float]] | Mapping[int, float] | None = None
    ) -> Drafted:
        """Says which tokens are expected next, and waits for those that came, or for the end.

        Without `q` a guess counts as far as it is what would have come anyway. `q` says what the tokens were drawn
        from: for each of them, or for all, probabilities by token id (or numbers in proportion to them; tokens that are
        left out have none). Then a token stays or is replaced by chance, so that what is drawn is distributed as
        without a guess.
        """

    async def completion(self) -> Completion:
        """What came of it, once it has ended."""

    async def stop(self) -> None:
        """Ends it at once; the history has what was generated."""

class Forward:
    """One pass over several contexts, put together call by call and run as often as wanted."""

    async def embed_next(self, contexts: Sequence[Context]) -> None:
        """Each lane is a context, in this order, and reads the token that it is about to read; up to 8 lanes."""

    async def embed(self, tokens: Sequence[int], indptr: Sequence[int] | None = None) -> None:
        """Instead of that: tokens of all lanes end to end, lane i from `indptr[i]` to `indptr[i + 1]`; a row each."""

    async def state(self, contexts: Sequence[Context], geometry: Mapping[str, Any] | None = None) -> None:
        """The contexts that the lanes of `embed` follow, and where their rows are.

        `positions` (a row): rotary positions, any order, repeated or not. `slots` (a row): the slots behind the
        history, each once, in which the rows lie. `kv_len` (a lane): slots from there on are not seen. `fold`: how many
        rows, in the order of slots, stay in the history: "all", "none", a number or a list of one a lane, or "probe.x",
        which the program works out.
        """

    async def mask(self, rows: Sequence[Any] | Program | str) -> None:
        """For each row the slots that it sees: bits, `[start, stop]` spans, or None for all up to its own.

        Slot n of a lane is the n-th token of its history, and behind it the rows. A row always sees itself, and never
        what is written after it. Instead of rows a device program whose function is called `mask` says it by a rule.
        """

    async def adapter(
        self,
        site: str,
        adapter: Program | str,
        *,
        layers: Sequence[int] | None = None,
        lanes: Sequence[int] | None = None,
    ) -> None:
        """What an adapter does to the rows of `embed` at one of `lm.model.sites`; what comes before them stays.

        After `embed_next` it changes the tokens that the lanes read from here on: the next, and with `run_ahead` all
        that are drawn. What a context gains is computed again by the context's own adapter when that is next used.

        It is the name of a loaded one ("" for the model alone), or a device program whose function is called
        `adapter`: `y + scale * (x @ a) @ b`. It takes the place of what the adapter of the context does there.
        """

    async def readout(self, rows: Sequence[int], *, top: int | Literal["all"] = 64, need_mass: float = 0.0) -> None:
        """Which rows are read, the last of each lane if left out: `lanes[i].logits` of a program, or `Pass.rows`."""

    async def epilogue(
        self,
        program: Program | str,
        q: Sequence[Mapping[int, float]] | Mapping[int, float] | None = None,
    ) -> None:
        """This program draws one token from `lanes[i].logits`; with `embed_next` every lane is given it.

        Or it judges (`verify`) a guess: the rows of `embed` but for the first, which were drawn from `q` as in
        `Drafting.next`. Then `fold` may be "probe.kept", which is how many rows stand, and the token is the one behind.
        """

    async def on_attention(
        self,
        program: Program | str | None = None,
        *,
        reduce: Literal["mean", "max"] = "mean",
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        total: bool = False,
        by_layer: bool = False,
        top: int = 64,
    ) -> None:
        """`Pass.attention` tells what the rows that are read attend to, or after `embed_next` each lane's last token.

        Of these `layers` and query `heads` (from 0, or from -1 from the end; None for all) it is the mean or the
        greatest. `total` sums up the rows of each lane. `top` slots are listed by name. A device program whose function
        is called `keep` says by a rule which slots stay: `Attention.dropped` has the others. `by_layer` tells the same
        of each layer by itself, in `Attention.layers`; then the rule is asked about each, and a slot that none keeps
        goes.
        """

    async def run(self, *, seed: int | None = None) -> Pass:
        """One pass. After `embed_next` the token is added to all histories, after `embed` what `fold` says."""

class Pass:
    """What came of one pass."""

    token: int
    """The token that was drawn; -1 if no program drew one."""
    probes: dict[str, Any]
    """What the program noted down, by name."""
    rows: list[Distribution]
    """What the model expects behind each row that was read, if no program drew."""
    folded: list[int]
    """How many rows of each lane its history has gained, after `embed`."""
    attention: list[Attention]
    """With `on_attention`: for each row that was read, in that order, or for each lane with `total`."""

class SlotScore(NamedTuple):
    """How much a slot is attended to."""

    slot: int
    score: float

class Attention:
    """What a row attends to, or all rows of a lane together."""

    scores: list[float]
    """How much of it, 0..1 a row, goes to each slot: the n-th token of the history, and behind it the rows."""
    top: list[SlotScore]
    """The slots with most, best first."""
    omitted_mass: float
    """What all other slots have together."""
    dropped: list[list[int]]
    """[start, stop] of what the program does not keep, for `Context.drop`; nothing without a program."""
    layer: int
    """Whose that is; -1 where it is made of several."""
    layers: list[Attention]
    """With `by_layer`: what each of the layers that were asked for attends to, in their order."""

class Submitted:
    """A pass on its way."""

    async def result(self) -> Pass:
        """Waits for it; raises what it raised."""

class Pipeline:
    """Passes in order. Separate pipelines do not wait for each other.

    Passes that change no context (`embed` with `fold` "none") run side by side; one that does comes behind all that
    were submitted before, and those submitted later come behind it.
    """

    finish_reason: Literal["stop", "length"] | None
    """How the newest `run_ahead` ended: `length` if it drew as many tokens as it may."""
    probes: dict[str, list[Any]]
    """What its program noted down: one value a token, by name."""

    async def submit(self, fwd: Forward, *, seed: int | None = None) -> Submitted:
        """Runs a pass, as it is now, in its order; comes back at once.

        Where one that it comes behind fails, it fails with the same error.
        """

    async def submit_frame(self, passes: Sequence[Forward], *, seed: int | None = None) -> list[Submitted]:
        """Submits several, in order."""

    async def run_ahead(
        self,
        fwd: Forward,
        budget: int,
        *,
        stop: Literal["template"] | Sequence[str] | None = "template",
        stop_token_ids: Sequence[int] = (),
        template_stops: bool | None = None,
        seed: int | None = None,
        constrain: Constrain | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        min_tokens: int | None = None,
        emit: bool = False,
    ) -> list[int]:
        """Runs a pass of `embed_next` up to `budget` times without coming back to the script in between.

        `stop="template"` ends with the model's own end tokens, None goes on past them; a list of texts ends where one
        of them begins, or with the model's own (unless `template_stops` is False). `constrain`, penalties, biases and
        `min_tokens` are as in `Context.generate` for the first lane, and change the logits of all lanes alike before
        the program reads them; a token that must not come is never drawn. Returns the tokens, the one that ended it
        included; all histories have them. `emit` streams their text as part of the answer.
        """

class Mark:
    """A place in a history, to come back to."""

class ContextInfo(NamedTuple):
    """What a context is and costs."""

    length: int
    """Tokens of the history."""
    pending: int
    """Those of them that are still to be computed."""
    bytes: int
    """Of KV memory, shared pages included."""
    shared_bytes: int
    """Those of them that other contexts use too."""
    residency: Literal["device", "host", "tokens"]
    """`host` if it must be copied back when it is next used, `tokens` if it must be computed anew."""
    recomputable: bool
    """Whether it can be."""

class Lease:
    """The wish to keep a context's KV."""

    revoked: str | None
    """Why it is over although you did not end it: `pressure`, `expired`, `quota`, `budget` or `engine`."""

    async def end(self) -> None:
        """Ends it: the context stays, and gives way as any other."""

class Context:
    """A token history with its KV. Handles are virtual: a script never sees a page."""

    length: int
    """Tokens of the history."""

    async def append(self, content: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> None:
        """Adds chat messages, text or token ids. Nothing is computed before it is needed.

        Messages are written as the model's chat template writes them behind what is there; what the model said before
        stays as it said it. The opening of the next answer is added when something is generated, or when text follows:
        text behind messages is the beginning of the answer to them. Token ids are added as they are: after messages,
        `append("")` first opens the answer that they are to be a part of.
        """

    async def prefill(self) -> None:
        """Computes what is pending now."""

    @overload
    async def fork(self, n: None = None) -> Context: ...
    @overload
    async def fork(self, n: int) -> list[Context]:
        """A copy that shares all memory with this one, or a list of n of them."""

    async def mark(self) -> Mark:
        """Remembers this place."""

    async def rewind(self, mark: Mark) -> None:
        """Goes back to a place; marks after it are void."""

    async def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens."""

    async def hide(self, start: int, stop: int) -> None:
        """Later tokens do not attend to these; what was computed while they were seen stays as it is."""

    async def drop(self, start: int, stop: int) -> None:
        """The same, and their memory is freed; positions stay."""

    async def forget(self, start: int, stop: int) -> None:
        """Takes tokens out as if they had never been there; what follows them is computed anew."""

    async def tokens(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Tokens of the history, all or from `start` to `stop`; what is hidden or dropped counts too."""

    async def info(self) -> ContextInfo:
        """What it is and costs."""

    async def retain(
        self,
        *,
        ttl_s: float,
        max_bytes: int,
        value: float = 0.5,
        on_pressure: Literal["host", "tokens", "release", "fail"] = "tokens",
    ) -> Lease:
        """Wishes to keep this context's KV while nothing is computed on it, for a time and within a budget.

        `value` is the chance that it is used again, as you see it; the server believes it as far as earlier ones of
        yours came true. When others need the memory more, `host` moves the KV to host memory where the server has some,
        `tokens` gives it up, to be computed anew; `fail` does so too and lets the next computation fail with
        `lease_revoked`; `release` lets all of them fail. KV is charged wherever it lies.
        """

    async def export(
        self,
        name: str,
        *,
        ttl_s: float | None = None,
        visibility: Literal["private", "tenant", "shared"] = "tenant",
        allow: Sequence[str] = (),
    ) -> str:
        """Keeps what it is now beyond the run, for `lm.prefix` and requests, and returns the id. See docs/prefixes.md.

        What is pending is computed first. A name that is taken is given to the new version; the old one keeps its id.
        It is kept for `ttl_s` after its last use, or as long as the server does by itself, and its KV is charged to
        you meanwhile. `visibility` says who may go on from it: `private` the same API key, `tenant` every key of the
        tenant, `shared` everybody who has the id; `allow` narrows that to labels of tenants, ids of keys and digests
        of programs. Raises `PermissionError` (`capability_denied`) for API keys without the scope `prefixes`.
        """

    async def release(self) -> None:
        """Frees it; twice is as good as once. The end of the program frees all."""

    async def generate(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        min_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        template_stops: bool = True,
        constrain: Constrain | None = None,
        sampler: Program | str | None = None,
        drafter: Callable[[list[int], int], Guess | Awaitable[Guess]]
        | Program
        | str
        | Drafter
        | Mapping[str, Any]
        | None = None,
        verify: Program | str | None = None,
        logprobs: int | None = None,
        emit: bool = False,
    ) -> Completion:
        """Generates until a stop and adds what came to the history.

        `max_tokens` is as many as fit if left out; other fields that are left out are the model's own
        recommendation. `template_stops=False` lets the model go on past its own end tokens. `sampler` draws the tokens
        instead of temperature and truncation, see `lm.program`. `drafter` guesses tokens ahead, which are verified
        several at a time: what is generated is the same, sooner where the guess is right. It is "prompt_lookup" for
        text that repeats what is there already, a device program with a function `propose`, or a function of the
        script: `propose(tokens, k)` is given the whole history and returns up to k token ids, or a pair of them and
        what they were drawn from, see `Drafting.next`. `verify` judges guesses by another rule than these: "greedy",
        "rejection", or a device program with a function `verify`, see docs/drafting.md. `emit` streams the text as
        part of the answer.
        """

    async def drafting(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        min_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        template_stops: bool = True,
        constrain: Constrain | None = None,
        sampler: Program | str | None = None,
        verify: Program | str | None = None,
        logprobs: int | None = None,
        emit: bool = False,
    ) -> Drafting:
        """The same with guesses that the script makes between steps; `generate(drafter=...)` is a loop around it."""

    async def generation(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        min_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        template_stops: bool = True,
        constrain: Constrain | None = None,
        top: int = 64,
        need_mass: float = 0.0,
    ) -> Generation:
        """Begins a generation whose every step the script decides.

        `top` is how many candidates a step shows; `need_mass` shows more until they have that much probability.
        """

    async def next(self, *, top: int | Literal["all"] = 64, need_mass: float = 0.0) -> Distribution:
        """The distribution at the end of the history, without drawing from it."""

    @overload
    async def score(self, continuations: Sequence[str] | Sequence[Sequence[int]]) -> list[list[float]]: ...
    @overload
    async def score(
        self, continuations: Sequence[str] | Sequence[Sequence[int]], *, top: int
    ) -> list[list[TokenLogprob]]:
        """Log-probability of each token of each text if it came next; the context stays as it is.

        `top` shows each token with as many of those that are likeliest at its place, up to 20: one pass checks what
        was guessed.
        """

    async def choose(self, continuations: Sequence[str] | Sequence[Sequence[int]]) -> Choice:
        """Which of the texts the model expects most."""

class Choice(NamedTuple):
    """The model's choice among texts."""

    best: int
    """Index of the likeliest."""
    probabilities: list[float]
    """Of each, normalised over all of them."""

class Model:
    """What is served."""

    name: str
    vocab_size: int
    max_tokens: int
    """Most tokens of one history."""
    page_tokens: int
    """Tokens of one page of KV memory."""
    eos_token_ids: list[int]
    """Tokens with which the model ends by itself."""
    adapters: list[str]
    """Adapters that `lm.context` can name; each is also a model name of the server."""
    sites: dict[str, list[int]]
    """Sites of a layer that the rows of a pass can change by an adapter, with the numbers that go in and come out."""
    capabilities: list[str]
    """Names that `require` knows here."""

    async def require(self, capability: str) -> None:
        """Raises `RuntimeError` with the code `capability_missing` if this server does not have it.

        What a program can never do without it names in `EXTENSION["capabilities"]`, and is not run elsewhere.
        """

class ChildResult(NamedTuple):
    """What a program that was started by `lm.run` came to."""

    text: str
    """Of its answer; empty if there is none."""
    result: Any
    """What its `main` returned if that was neither text nor a message."""
    message: dict[str, Any] | None
    """What else of a message its `main` returned: `tool_calls`, `reasoning_content`."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    exec_path: str
    """Which lane computed it: `fused`, `device`, `host` or `mixed`."""
    usage: Usage
    """Tokens of all its generations."""
    logs: str
    """What it printed."""

class Store:
    """Small values that outlive the run; all programs of one owner share them, and nobody else sees them.

    Keys are texts of up to 200 characters; values are JSON of up to 256 KiB.
    """

    async def get(self, key: str, default: Any = None) -> Any:
        """The value under a key, or `default`."""

    async def put(self, key: str, value: Any, *, ttl_s: float | None = None, only_new: bool = False) -> bool:
        """Keeps a value, for `ttl_s` seconds if given.

        `only_new` leaves a value that is there as it is, and returns False: one of several programs wins. Raises
        `limit_exceeded` where the owner keeps too much already.
        """

    async def add(self, key: str, amount: float = 1) -> float:
        """Adds to the number under a key, in one step whoever else does the same, and returns the sum.

        A key that is not there counts from 0. `add` leaves the time that a value is kept as it is.
        """

    async def delete(self, key: str) -> bool:
        """Forgets a value; False if there was none."""

class Subscription:
    """A topic from the moment of `lm.subscribe` on."""

    topic: str
    missed: int
    """Messages that were dropped before they were read: a topic keeps only the newest."""

    async def next(self, timeout_s: float | None = None) -> Any:
        """The next message; raises `receive_timeout` if none comes in time. None waits as long as the run may."""

class HttpResponse(NamedTuple):
    """What another server sent."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    text: str
    json: Any
    """The text as JSON, if the server says that it is; else None."""
    is_cut: bool
    """It was longer than 1 MiB, and the rest was not read."""

class Http:
    """Requests to hosts that the operator allows. Redirects are not followed.

    Raises `PermissionError` (`egress_denied`) for other hosts, `TimeoutError` (`tool_timeout`) if no answer comes to a
    GET or HEAD, and `RuntimeError`: `tool_outcome_unknown` if none comes to another request, `tool_failed` if the host
    cannot be reached.
    """

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> HttpResponse:
        """Sends a GET."""

    async def post(
        self,
        url: str,
        *,
        json: Any = None,
        text: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> HttpResponse:
        """Sends a POST of JSON or text."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        text: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> HttpResponse:
        """Sends GET, HEAD, POST, PUT, PATCH or DELETE."""

class ToolCall:
    """A call that goes on beside the script."""

    name: str
    status: Literal["waiting", "running", "done", "failed", "cancelled"]
    """`waiting` if it begins only with `result`: what cannot be undone does."""

    async def result(self, *, timeout_s: float | None = None) -> Any:
        """Waits for the answer: a JSON value, or text.

        Raises what `lm.tool` raises; `TimeoutError` (`tool_timeout`) also if `timeout_s` is over, but then the call
        goes on, and `result` may be awaited again.
        """

    async def cancel(self) -> Literal["not_started", "done", "unknown"]:
        """Gives it up. `unknown` says that the tool may have done its work."""

class Mcp:
    """A server that speaks MCP."""

    server: str

    async def tools(self) -> list[dict[str, Any]]:
        """Its tools: `name`, `description`, `parameters` (JSON Schema), `effect`."""

    async def call(self, tool: str, args: Mapping[str, Any] | None = None, *, key: str | None = None) -> Any:
        """Calls one of them; see `lm.tool`."""

class LM:
    """The model and the world, as far as a program may reach them."""

    model: Model
    store: Store
    http: Http

    async def context(
        self, content: str | Sequence[int] | Sequence[Mapping[str, Any]] = (), *, adapter: str | None = None
    ) -> Context:
        """A new context of chat messages, text or token ids. Nothing is computed before it is needed.

        With `adapter` the model is changed by the adapter of that name in all that is computed on the context and on
        its forks; left out it is the one that the client named as its model, if any, and `""` is the model alone.
        Raises `RuntimeError` with the code `capability_missing` if the server has none of that name.
        """

    @overload
    async def prefix(self, name: str, *, on_miss: Literal["recompute", "fail"] = "recompute") -> Context: ...
    @overload
    async def prefix(self, name: str, *, on_miss: Literal["none"]) -> Context | None:
        """A context that goes on from what was exported under a name of yours, or under an id: a copy, never a move.

        `on_miss` says what becomes of it if its KV is not in memory any more: `recompute` computes it again when it is
        used, `fail` raises `prefix_lost`. If there is no such prefix, or another model made it, both raise
        `prefix_not_found`, `prefix_lost` if its time is over, or `fingerprint_mismatch`; `none` returns None in all of
        these cases, so that a program can make it.
        """

    async def constraint(self, constrain: Constrain) -> Constraint:
        """Compiles what a text must be, to use it several times; raises `constraint_invalid` where that cannot be."""

    async def program(
        self, source: str, **parameters: float | bool | str | Sequence[float] | Sequence[Sequence[float]]
    ) -> Program:
        """Checks a device program: a few lines that draw the tokens inside the step, guess them ahead, and so on.

        See docs/device_programs.md and docs/drafting.md.
        """

    def forward(self) -> Forward:
        """An empty pass over several contexts. See docs/forward.md."""

    def pipeline(self) -> Pipeline:
        """Passes in order."""

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text; special tokens written in it become themselves."""

    async def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids."""

    async def emit(self, text: str) -> None:
        """Streams text as part of the answer."""

    async def emit_event(self, type: str, data: Any = None) -> None:
        """Sends the client an event of the script's own; `data` is any JSON value."""

    async def tool(self, name: str, /, **arguments: Any) -> Any:
        """Calls a tool of the server and waits for its answer: a JSON value, or text.

        Raises `LookupError` (`tool_not_found`), `ValueError` (`invalid_argument`: the arguments do not fit the tool's
        schema), `PermissionError` (`tool_denied`, `egress_denied`), `TimeoutError` (`tool_timeout`: it may be tried
        again) and `RuntimeError`: `tool_failed` if it says that it did not work or cannot be reached,
        `tool_outcome_unknown` if it was called, may have done its work, and did not answer.
        """

    async def tools(self) -> list[dict[str, Any]]:
        """The tools that there are: `name`, `description`, `parameters` (JSON Schema), `effect`."""

    async def start_tool(self, name: str, args: Mapping[str, Any] | None = None, *, key: str | None = None) -> ToolCall:
        """Calls a tool beside the script, so that the model goes on meanwhile.

        A tool whose effect is `irreversible` begins only when its `result` is asked for. `key` is a name of the
        script's own for this piece of work: with the same key it is done once in a run.
        """

    async def tool_loop(
        self,
        ctx: Context,
        tools: Sequence[str] | None = None,
        *,
        max_rounds: int = 8,
        emit: bool = True,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Completion:
        """Lets the model call tools until it stops asking, and returns its last answer.

        `tools` are names; all that there are if left out. Its `tool_calls` are those that were not run: of tools that
        the client offers itself, or beyond `max_rounds`. `emit` streams its text, and the events `tool_call` and
        `tool_result`. `max_tokens` is of each answer.
        """

    def mcp(self, server: str) -> Mcp:
        """A server that speaks MCP, by its label."""

    async def run(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> ChildResult:
        """Runs another program, `name` or `name@version`, to its end.

        It sees this run's request with its own `args`, and other `messages` if they are given. It ends with this run,
        and all that it uses counts against this run's limits; `limits` makes them smaller still. What it emits is its
        result alone; its events are not passed on. Raises `extension_not_found`, `child_failed` with its error, and
        `limit_exceeded` where programs would start programs too deep.
        """

    async def run_source(
        self,
        source: str,
        args: Mapping[str, Any] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> ChildResult:
        """Runs a text as a program, such as one that the model wrote; else as `run`.

        It is checked first: `program_invalid` says with line and column why it cannot run.
        """

    async def receive(self, timeout_s: float | None = None) -> Any:
        """The next input that the client has posted to the run; raises `receive_timeout` if none comes in time.

        None waits as long as the run may. A program that is no run of /v1/runs gets no input: it is told at once.
        """

    async def publish(self, topic: str, data: Any) -> None:
        """Tells all programs of this owner that subscribe to a topic, whichever process they run in.

        A topic keeps its newest messages only; who is too slow finds out by `missed`. At most 64 KiB as JSON.
        """

    async def subscribe(self, topic: str) -> Subscription:
        """Hears what is published on a topic from now on."""

    async def push(self, queue: str, data: Any, *, timeout_s: float | None = 0.0) -> None:
        """Adds to a queue of this owner's programs, of which each message is pulled once.

        A full queue is waited for, `timeout_s` seconds, then raises `limit_exceeded`. At most 64 KiB as JSON.
        """

    async def pull(self, queue: str, *, timeout_s: float | None = None) -> Any:
        """Takes the oldest message of a queue; raises `receive_timeout` if none comes in time."""

    async def sleep(self, seconds: float) -> None:
        """Waits."""

    def now(self) -> float:
        """Seconds since 1970."""

    def random(self) -> float:
        """A number from 0 to below 1."""
