"""Doubles: an engine that follows a script, a small tokenizer with a chat template, and a server around them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import httpx
import msgspec
import numpy as np
import numpy.typing as npt
import uvicorn
from tokenizers import Tokenizer as Library

from engine.client import validate_request
from engine.contexts.commands import ContextCommand, ContextInfo
from engine.errors import EngineError, EngineStopped
from engine.kv.commands import AccountCommand, SetCeilings, SetShares
from engine.kv.overview import KVMap
from engine.leases.lease import LeaseRevoked
from engine.messages import Submit, decode_command, encode
from engine.request import (
    ConstraintSpec,
    Distribution,
    EngineInfo,
    FinishReason,
    GenerateRequest,
    GenerationDefaults,
    Proposal,
    Readout,
    TokenEvent,
    TokenLogprob,
)
from engine.stats import AccountCharge, EngineStats
from engine.streams import is_between
from engine.text.chat_template import ChatTemplate
from engine.text.model import TextModel
from engine.text.tokenizer import Tokenizer
from gateway.app import create_app
from gateway.settings import Settings
from gateway.worker import DrainingServer, server_config
from tests.engine.text.vocabularies import byte_level
from tests.scripted_contexts import ScriptedContexts

Action = Sequence[int] | asyncio.Event | EngineError | float
"""Tokens of one event; something to wait for; an error; seconds to sleep."""

Script = Callable[[GenerateRequest, int], Sequence[Action]]
"""What happens in sequence `index` of a request. After the last action the model's end id follows."""

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'forbidden' or (not loop.first and message.role == 'user' and "
    "messages[loop.index0 - 1].role == 'user') %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|begin|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }})"
    "{% endfor %}<|end|>\n"
    "{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
MODEL = "org/tiny"
HIDDEN_SIZE = 8


def text_model(*, template: str | None = TEMPLATE, bos: bool = False) -> TextModel:
    """A byte-level tokenizer of 400-odd tokens with `<|begin|>` and `<|end|>`."""
    library: Library = byte_level()
    begin = library.token_to_id("<|begin|>")
    return TextModel(
        path=Path("tiny"),
        tokenizer=Tokenizer(library, bos_token_id=begin, adds_bos=bos),
        chat_template=None if template is None else ChatTemplate(template),
    )


def says(text: TextModel, words: str, *, per_event: int = 1) -> Script:
    """A script in which every sequence says the same words, a few tokens an event."""
    ids = text.tokenizer.encode(words, add_special=False)
    return lambda request, index: [ids[at : at + per_event] for at in range(0, len(ids), per_event)]


def repeats(token_id: int) -> Script:
    """A script that goes on with one token until `max_tokens`."""
    return lambda request, index: [[token_id]] * request.sampling.max_tokens


def logprob_of(token_id: int, num_top: int) -> TokenLogprob:
    """What the scripted engine reports of a token: a number of its own, and its neighbours as alternatives."""
    logprob = -0.25 - (token_id % 8) / 8
    top = [token_id, *(other for other in range(num_top) if other != token_id)][:num_top]
    return TokenLogprob(logprob, top, [logprob - place for place in range(len(top))], 1)


def embedding_of(prompt_ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """The scripted engine's embedding of a prompt, [HIDDEN_SIZE]: mean of one vector a token, so order is no matter."""
    angles = np.outer(np.array(prompt_ids) + 1, np.arange(1, HIDDEN_SIZE + 1))
    found: npt.NDArray[np.float32] = np.cos(angles).mean(0).astype("<f4")
    return found


def distribution_of(token_id: int, readout: Readout, vocab_size: int) -> Distribution:
    """What the scripted engine says a token was drawn from: it has half of the mass, all others the same."""
    rest = math.log(0.5 / (vocab_size - 1))
    others = [other for other in range(vocab_size) if other != token_id]
    count = vocab_size if readout.top < 0 else min(vocab_size, max(1, readout.top))
    while count < vocab_size and 0.5 + (count - 1) * math.exp(rest) < readout.need_mass:
        count += 1
    ids = list(range(vocab_size)) if readout.top < 0 else [token_id, *others][:count]
    logprobs = array("f", [math.log(0.5) if one == token_id else rest for one in ids])
    omitted = 0.5 * (vocab_size - count) / (vocab_size - 1)
    return Distribution(array("i", ids).tobytes(), logprobs.tobytes(), omitted, -0.5 * (math.log(0.5) + rest))


class ScriptedStream:
    """Implements `engine.client.EventStream` for one request of a `ScriptedEngine`."""

    def __init__(self, engine: ScriptedEngine, request: GenerateRequest) -> None:
        self._engine = engine
        self._request = request
        self._queue: asyncio.Queue[TokenEvent | Exception] = asyncio.Queue()
        self._take: Callable[[TokenEvent], None] | None = None
        self._is_awaited = False
        self._open = set(range(request.n))
        self._answers: asyncio.Queue[tuple[int | None, int, frozenset[int]]] = asyncio.Queue()
        play = self._play_steps if request.stepped else self._play
        self._tasks = [asyncio.create_task(play(index)) for index in range(request.n)]

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        if not self._open and self._queue.empty():
            raise StopAsyncIteration
        self._is_awaited = self._queue.empty()
        try:
            item = await self._queue.get()
        finally:
            self._is_awaited = False
        if isinstance(item, Exception):
            raise item
        if item.finish_reason is not None:
            self._open.discard(item.index)
            self._finish_if_done()
        return item

    async def stop_sequence(self, index: int) -> None:
        """Ends one sequence."""
        self._tasks[index].cancel()
        self._open.discard(index)
        self._finish_if_done()

    def advance(self, token_id: int | None, num_steps: int, banned: Sequence[int], num_taken: int = 0) -> None:
        """Goes on with a stepped request."""
        assert not num_taken
        self._answers.put_nowait((token_id, num_steps, frozenset(banned)))

    def guess(self, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """Nothing waits for a guess here."""
        raise AssertionError(f"nobody asked for a guess of {len(token_ids)} tokens and {len(proposals)} proposals")

    def divert(self, take: Callable[[TokenEvent], None]) -> None:
        """Gives `take` what comes while the reader waits."""
        self._take = take

    async def aclose(self) -> None:
        """Ends the request."""
        for task in self._tasks:
            task.cancel()
        if self._open:
            self._engine.aborted.append(self._request.request_id)
        self._open.clear()
        self._finish_if_done()

    def fail(self, error: EngineError) -> None:
        """Ends the stream with an error."""
        for task in self._tasks:
            task.cancel()
        self._put(error)

    def _put(self, item: TokenEvent | Exception) -> None:
        if self._take is not None and self._is_awaited and isinstance(item, TokenEvent) and is_between(item):
            try:
                self._take(item)
                self._engine.num_taken += 1
                return
            except Exception as error:
                item = error
        self._is_awaited = False
        self._queue.put_nowait(item)

    def _finish_if_done(self) -> None:
        if not self._open:
            self._engine.streams.pop(self._request.request_id, None)

    async def _play(self, index: int) -> None:
        request, sampling = self._request, self._request.sampling
        num_tokens = num_given = request.num_given
        is_first = True
        if sampling.max_tokens == 0:
            self._emit(index, [], is_first, FinishReason.LENGTH, None)
            return
        for action in self._engine.script(request, index):
            if isinstance(action, asyncio.Event):
                await action.wait()
            elif isinstance(action, float):
                await asyncio.sleep(action)
            elif isinstance(action, EngineError):
                self.fail(action)
                return
            else:
                num_skipped = min(num_given, len(action))
                num_given -= num_skipped
                ids = list(action)[num_skipped : num_skipped + sampling.max_tokens - num_tokens]
                if num_skipped and not ids:
                    continue
                num_tokens += len(ids)
                stop = next((token for token in ids if token in sampling.stop_token_ids), None)
                if stop is not None:
                    ids = ids[: ids.index(stop) + 1]
                is_over = stop is not None or num_tokens >= sampling.max_tokens
                reason = FinishReason.STOP if stop is not None else FinishReason.LENGTH
                self._emit(index, ids, is_first, reason if is_over else None, stop)
                is_first = False
                if is_over:
                    return
                await asyncio.sleep(0)
        self._emit(index, [self._engine.info.eos_token_ids[0]], is_first, FinishReason.STOP, None)

    async def _play_steps(self, index: int) -> None:
        """Proposes the script's tokens one by one, then the end id; an answer may take another token instead."""
        request, end = self._request, self._engine.info.eos_token_ids[0]
        stop_ids = {end, *request.sampling.stop_token_ids}
        banned: frozenset[int] = frozenset(word[0] for word in request.sampling.bad_words if len(word) == 1)
        num_tokens = num_free = 0
        for token_id in [*self._scripted_tokens(index), end]:
            if token_id in banned:
                continue
            if num_tokens < request.num_given:
                num_tokens += 1
                continue
            if num_free == 0:
                self._propose(index, token_id)
                chosen, num_steps, more = await self._answers.get()
                banned, num_free = banned | more, num_steps
                if chosen is None and token_id in banned:
                    num_free -= 1
                    continue
                token_id = token_id if chosen is None else chosen
            num_free -= 1
            num_tokens += 1
            is_stop = token_id in stop_ids
            is_over = is_stop or num_tokens >= request.sampling.max_tokens
            reason = FinishReason.STOP if is_stop else FinishReason.LENGTH
            self._emit(index, [token_id], num_tokens == 1, reason if is_over else None, token_id if is_stop else None)
            if is_over:
                return

    def _scripted_tokens(self, index: int) -> list[int]:
        actions = self._engine.script(self._request, index)
        return [token_id for action in actions if isinstance(action, Sequence) for token_id in action]

    def _propose(self, index: int, token_id: int) -> None:
        readout = self._request.readout
        distribution = None if readout is None else distribution_of(token_id, readout, self._engine.info.vocab_size)
        self._put(
            TokenEvent(
                request_id=self._request.request_id,
                index=index,
                token_ids=[],
                proposal=token_id,
                distribution=distribution,
            )
        )

    def _emit(self, index: int, ids: list[int], is_first: bool, reason: FinishReason | None, stop: int | None) -> None:
        request = self._request
        self._engine.contexts.histories.get(request.context_id, []).extend(ids)
        asked = request.sampling.logprobs
        prompt_logprobs = None
        if is_first and request.prompt_logprobs is not None:
            first = max(1, request.logprobs_start)
            prompt_logprobs = [logprob_of(token, request.prompt_logprobs) for token in request.prompt_ids[first:]]
        self._put(
            TokenEvent(
                request_id=request.request_id,
                index=index,
                token_ids=ids,
                logprobs=[] if asked is None else [logprob_of(token, asked) for token in ids],
                finish_reason=reason,
                stop_token_id=stop,
                num_cached_tokens=self._engine.num_cached_tokens if is_first else None,
                prompt_logprobs=prompt_logprobs,
                embedding=None if request.pooling is None else embedding_of(request.prompt_ids).tobytes(),
                kv_kib_ms=self._engine.kv_kib_ms,
            )
        )


class ScriptedEngine:
    """Implements `engine.client.EngineClient`: every request is checked as the engine does, then follows the script.

    Attributes:
        script: May be changed between requests.
        requests: All that were accepted.
        aborted: Ids of those that were ended before their last token.
        num_taken: Events that were taken without their reader.
        streams: Those that run, by id.
        refusal: Raised by the next submissions if not None.
        num_refused: Submissions that it was raised by.
        num_cached_tokens: Reported for every request.
        kv_kib_ms: What every sequence is said to have been charged.
        charges: What the KV of each account is said to have come to; a test may fill it.
        watchers: Who wants news of which lease.
        on_describe: Called before a context is described.
        governed: What it was told about accounts.
        contexts: Held contexts. A request on one has its history as `prompt_ids` in `requests` and in scripts.
        stream_type: What a request becomes.
    """

    stream_type: type[ScriptedStream] = ScriptedStream

    def __init__(self, text: TextModel, script: Script, *, max_model_len: int = 4096, num_pages: int = 4096) -> None:
        self.script = script
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.compiled: list[ConstraintSpec] = []
        self.num_taken = 0
        self.streams: dict[str, ScriptedStream] = {}
        self.refusal: EngineError | None = None
        self.num_refused = 0
        self.num_cached_tokens = 0
        self.kv_kib_ms = 0
        self.governed: list[AccountCommand] = []
        self.on_describe: Callable[[], None] | None = None
        self.watchers: dict[str, Callable[[LeaseRevoked], None]] = {}
        self.charges: dict[str, AccountCharge] = {}
        self.contexts = ScriptedContexts()
        self._stats = EngineStats(num_pages=num_pages, num_finished={"stop": 0})
        end = text.tokenizer.encode("<|end|>", add_special=False)[0]
        self._info: EngineInfo | None = EngineInfo(
            epoch="1",
            model_path="tiny",
            architecture="llama",
            fingerprint="0123456789abcdef",
            vocab_size=text.tokenizer.vocab_size,
            hidden_size=HIDDEN_SIZE,
            eos_token_ids=(end,),
            max_model_len=max_model_len,
            page_size=16,
            num_pages=num_pages,
            page_bytes=1024,
            device="cpu",
            step="torch",
            dtype="float32",
            kv_dtype="float32",
            attention_backend="cpu",
            defaults=GenerationDefaults(),
            num_parameters=1,
            load_s=0.0,
        )

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`."""
        if self._info is None:
            raise EngineStopped("no engine is connected")
        return self._info

    @property
    def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        self._stats.num_running = len(self.streams)
        return self._stats

    @property
    def is_ready(self) -> bool:
        """See `EngineClient.is_ready`."""
        return self._info is not None

    @property
    def last(self) -> GenerateRequest:
        """The newest request."""
        return self.requests[-1]

    def tell_used(self, num_pages: int) -> None:
        """New numbers, after a step more: so many pages are in use."""
        self._stats = msgspec.structs.replace(
            self._stats, num_used_pages=num_pages, num_steps=self._stats.num_steps + 1
        )

    async def submit(self, request: GenerateRequest) -> ScriptedStream:
        """See `EngineClient.submit`."""
        if self.refusal is not None:
            self.num_refused += 1
            raise self.refusal
        history = self.contexts.history(request.context_id) if request.context_id else []
        validate_request(request, self.info, len(history))
        # What cannot cross to an engine process must fail here too.
        assert decode_command(encode(Submit(request))) == Submit(request)
        if request.context_id:
            request = msgspec.structs.replace(request, prompt_ids=history[: len(history) - request.num_given])
        self.requests.append(request)
        stream = self.stream_type(self, request)
        self.streams[request.request_id] = stream
        return stream

    def tell(self, command: ContextCommand | AccountCommand) -> None:
        """See `EngineClient.tell`."""
        if not self.is_ready:
            return
        if isinstance(command, SetCeilings | SetShares):
            self.governed.append(command)
        else:
            self.contexts.obey(command)

    def watch_lease(self, lease_id: str, told: Callable[[LeaseRevoked], None]) -> None:
        """See `EngineClient.watch_lease`."""
        self.watchers[lease_id] = told

    def unwatch_lease(self, lease_id: str) -> None:
        """See `EngineClient.unwatch_lease`."""
        self.watchers.pop(lease_id, None)

    async def describe_context(self, context_id: str) -> ContextInfo:
        """See `EngineClient.describe_context`."""
        if not self.is_ready:
            raise EngineStopped("no engine is connected")
        if self.on_describe is not None:
            self.on_describe()
        return self.contexts.describe(context_id)

    async def compile(self, constraint: ConstraintSpec) -> None:
        """See `EngineClient.compile`."""
        if not self.is_ready:
            raise EngineStopped("no engine is connected")
        self.compiled.append(constraint)

    async def describe_kv(self) -> KVMap:
        """See `EngineClient.describe_kv`."""
        if not self.is_ready:
            raise EngineStopped("no engine is connected")
        return self.contexts.draw(self.info.num_pages)

    async def close(self) -> None:
        """See `EngineClient.close`."""
        self.die("the connection was closed")

    def die(self, message: str = "the engine process ended") -> None:
        """Ends every stream as the end of an engine process does."""
        self._info = None
        for stream in list(self.streams.values()):
            stream.fail(EngineStopped(message))
        self.streams.clear()


def scripted_client(engine: ScriptedEngine, text: TextModel, **settings: object) -> httpx.AsyncClient:
    """An HTTP client of an app over a scripted engine, without sockets."""
    app = create_app(make_settings(**settings), engine=engine, text=text)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)


def make_settings(**settings: object) -> Settings:
    """Settings for tests: the model is called `MODEL`, nothing is logged."""
    return Settings.model_validate({"model_names": (MODEL,), "access_log": False, "port": 0, **settings})


class RunningServer:
    """A real server in a thread of its own.

    Attributes:
        url: Where it listens.
        engine: The scripted engine, which lives in the server's event loop.
    """

    def __init__(self, engine: ScriptedEngine, text: TextModel, settings: Settings) -> None:
        self.engine = engine
        self._app = create_app(settings, engine=engine, text=text)
        config: uvicorn.Config = server_config(self._app, settings)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._server = DrainingServer(config, self._app.state.services, engine)
        self._thread = threading.Thread(target=self._run, name="server")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._server.serve([self._socket]))
        self._loop.run_until_complete(self._app.state.services.aclose())
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    @property
    def num_active(self) -> int:
        """Requests in flight."""
        count: int = self._app.state.services.lifecycle.num_active
        return count

    @property
    def is_draining(self) -> bool:
        """True once it takes no new work."""
        draining: bool = self._app.state.services.lifecycle.is_draining
        return draining

    @property
    def is_running(self) -> bool:
        """False once the server has ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Returns once the server listens."""
        self._thread.start()
        with httpx.Client(timeout=60) as client:
            client.get(self.url + "/version")

    def call(self, function: Callable[[], object]) -> None:
        """Runs something in the server's loop."""
        self._loop.call_soon_threadsafe(function)

    def begin_drain(self) -> None:
        """What a signal does."""
        self._server.begin_drain()

    def join(self, timeout_s: float = 60.0) -> None:
        """Waits for the end of the server."""
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """Ends the server, whatever runs."""
        if self._thread.is_alive():
            self.call(lambda: setattr(self._server, "force_exit", True))
            self.call(lambda: setattr(self._server, "should_exit", True))
            self._thread.join(60)


@contextlib.contextmanager
def running_server(engine: ScriptedEngine, text: TextModel, **settings: object) -> Iterator[RunningServer]:
    """Serves a scripted engine on a free port."""
    server = RunningServer(engine, text, make_settings(**settings))
    server.start()
    try:
        yield server
    finally:
        server.stop()
