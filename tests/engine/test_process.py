"""An engine in a child process: its door, its end, and what the other side sees of either."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, ParallelConfig, SchedulingConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.errors import ContextTooLong, EngineStopped, InvalidRequest, ModelLoadError
from engine.messages import Frame, encode
from engine.process import EngineProcess
from engine.request import ConstraintKind, ConstraintSpec, FinishReason, GenerateRequest
from engine.sampling.params import SamplingParams
from tests.extensions.scripted_engine import engine_info
from tests.tiny_models import write_tiny_model

NUM_PAGES = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=2)


def _config(model: Path) -> EngineConfig:
    return EngineConfig(
        model=str(model),
        device="cpu",
        weights="float32",
        seed=0,
        check_integrity=True,
        kv=KVConfig(num_pages=NUM_PAGES),
        scheduling=SchedulingConfig(max_num_seqs=16, max_batch_tokens=64),
        parallel=ParallelConfig(num_threads=1),
    )


def _request(name: str, length: int = 5, max_tokens: int = 8, n: int = 1) -> GenerateRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return GenerateRequest(request_id=name, prompt_ids=list(range(3, 3 + length)), sampling=params, n=n)


@pytest.fixture
def process(model: Path, tmp_path: Path) -> Iterator[EngineProcess]:
    with EngineProcess(_config(model), f"ipc://{tmp_path}/engine.sock") as engine:
        engine.wait_ready(60)
        yield engine


@contextlib.asynccontextmanager
async def _connected(endpoint: str) -> AsyncIterator[EngineConnection]:
    connection = EngineConnection(endpoint)
    try:
        await connection.connect(30)
        yield connection
    finally:
        await connection.close()


async def _tokens(connection: EngineConnection, request: GenerateRequest) -> list[int]:
    return [token async for event in await connection.submit(request) for token in event.token_ids]


async def _until(condition: object) -> None:
    assert callable(condition)
    for _ in range(2400):
        if condition():
            return
        await asyncio.sleep(0.025)
    raise AssertionError("it never came true")


async def test_a_child_serves_what_the_same_engine_here_serves(process: EngineProcess, model: Path) -> None:
    async with _connected(process.endpoint) as connection:
        assert connection.is_ready
        assert connection.info.num_pages == NUM_PAGES
        theirs = await _tokens(connection, _request("a"))
    async with open_engine(build_loop(_config(model))) as embedded:
        assert await _tokens(embedded, _request("a")) == theirs
    assert len(theirs) == 8
    assert process.stop() == 0


async def test_two_connections_get_their_own_events(process: EngineProcess) -> None:
    async with _connected(process.endpoint) as one, _connected(process.endpoint) as two:
        first, second = await asyncio.gather(_tokens(one, _request("x")), _tokens(two, _request("y", length=9)))
    assert len(first) == len(second) == 8
    assert first != second


async def test_what_can_never_be_served_is_refused_and_the_engine_goes_on(process: EngineProcess) -> None:
    async with _connected(process.endpoint) as connection:
        with pytest.raises(ContextTooLong):
            await connection.submit(_request("long", length=300, max_tokens=100_000))
        bad = GenerateRequest(request_id="bad", prompt_ids=[10**6], sampling=SamplingParams(max_tokens=1))
        with pytest.raises(InvalidRequest):
            await connection.submit(bad)
        assert len(await _tokens(connection, _request("good"))) == 8


async def test_constraints_are_compiled_ahead_or_refused(process: EngineProcess) -> None:
    good, bad = [ConstraintSpec(kind=ConstraintKind.REGEX, source=text, param="form") for text in ("[ab]{3}", "(")]
    async with _connected(process.endpoint) as connection:
        await connection.compile(good)
        with pytest.raises(InvalidRequest) as caught:
            await connection.compile(bad)
        assert caught.value.param == "form"
        given_up = asyncio.ensure_future(
            connection.compile(ConstraintSpec(kind=ConstraintKind.REGEX, source="[a-z]{1,40}[0-9]{1,40}"))
        )
        await asyncio.sleep(0)
        given_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await given_up
        await connection.compile(good)
        assert len(await _tokens(connection, _request("after"))) == 8
    with pytest.raises(EngineStopped):
        await connection.compile(good)


async def test_a_killed_engine_ends_its_streams_and_a_new_one_is_found(process: EngineProcess) -> None:
    async with _connected(process.endpoint) as connection:
        epoch = connection.info.epoch
        stream = await connection.submit(_request("a", max_tokens=500))
        await anext(stream)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineStopped):
            async for _ in stream:
                pass
        await _until(lambda: not connection.is_ready)
        with pytest.raises(EngineStopped):
            await connection.submit(_request("b"))
        assert process.stop() == -signal.SIGKILL
        with EngineProcess(process.config, process.endpoint) as successor:
            successor.wait_ready(60)
            await connection.connect(30)
            assert connection.info.epoch != epoch
            assert len(await _tokens(connection, _request("c"))) == 8


async def test_the_requests_of_a_gateway_that_vanishes_are_ended(process: EngineProcess) -> None:
    async with _connected(process.endpoint) as observer:
        async with _connected(process.endpoint) as vanishing:
            stream = await vanishing.submit(_request("a", max_tokens=500))
            await anext(stream)
        await _until(lambda: observer.stats.num_running == 0 and observer.stats.num_finished.get("abort") == 1)
        assert observer.stats.num_used_pages == 0


async def test_two_thousand_random_aborts_return_every_page(process: EngineProcess) -> None:
    rng = random.Random(8)

    async def visit(connection: EngineConnection, name: str) -> None:
        request = _request(name, length=rng.randint(1, 60), max_tokens=rng.randint(1, 60), n=rng.choice([1, 1, 2]))
        pending = asyncio.ensure_future(connection.submit(request))
        if rng.random() < 0.2:
            await asyncio.sleep(rng.random() * 0.01)
            pending.cancel()
        try:
            stream = await pending
        except asyncio.CancelledError:
            return
        for _ in range(rng.randint(0, 4)):
            try:
                await anext(stream)
            except StopAsyncIteration:
                break
        await stream.aclose()

    async with _connected(process.endpoint) as connection:
        for wave in range(20):
            await asyncio.gather(*[visit(connection, f"{wave}-{each}") for each in range(100)])
        await _until(lambda: connection.stats.num_running == connection.stats.num_waiting == 0)
        assert connection.stats.num_used_pages == 0
        assert len(await _tokens(connection, _request("after"))) == 8
    assert process.alive


async def test_stopping_ends_streams_with_an_error_and_exits_cleanly(process: EngineProcess) -> None:
    async with _connected(process.endpoint) as connection:
        stream = await connection.submit(_request("a", max_tokens=500))
        await anext(stream)
        assert await asyncio.to_thread(process.stop) == 0
        with pytest.raises(EngineStopped):
            async for _ in stream:
                pass


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    config = EngineConfig(model=str(tmp_path / "nothing"))
    with EngineProcess(config, f"ipc://{tmp_path}/engine.sock") as engine:
        with pytest.raises(ModelLoadError, match="nothing"):
            engine.wait_ready(60)
        assert engine.stop() == 1


def test_an_engine_that_is_still_loading_can_be_waited_for_again(model: Path, tmp_path: Path) -> None:
    with EngineProcess(_config(model), f"ipc://{tmp_path}/engine.sock") as engine:
        with pytest.raises(TimeoutError):
            engine.wait_ready(0.001)
        assert engine.wait_ready(60).num_pages == NUM_PAGES


async def test_an_unreadable_frame_ends_what_waits_instead_of_leaving_it_waiting(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/impostor.sock"
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as impostor:
        impostor.setsockopt(zmq.LINGER, 0)
        impostor.bind(endpoint)
        connection = EngineConnection(endpoint)
        try:
            await connection.connect(0)
            identity, _hello = await impostor.recv_multipart()
            await impostor.send_multipart([identity, encode(Frame(info=engine_info()))])
            await _until(lambda: connection.is_ready)
            pending = asyncio.ensure_future(connection.submit(_request("a")))
            await impostor.recv_multipart()
            await impostor.send_multipart([identity, b"\xc1 no msgpack"])
            with pytest.raises(EngineStopped, match="broke"):
                await pending
            assert not connection.is_ready
        finally:
            await connection.close()


async def test_waiting_for_an_engine_that_never_comes_ends_in_time(tmp_path: Path) -> None:
    connection = EngineConnection(f"ipc://{tmp_path}/nobody.sock")
    try:
        with pytest.raises(EngineStopped, match="no engine answered"):
            await connection.connect(0.1)
        assert not connection.is_ready
        with pytest.raises(EngineStopped):
            connection.info  # noqa: B018  # the property itself raises
    finally:
        await connection.close()


async def test_the_finish_reason_and_the_cache_hit_reach_the_caller(process: EngineProcess) -> None:
    async with _connected(process.endpoint) as connection:
        await _tokens(connection, _request("a", length=40))
        events = [event async for event in await connection.submit(_request("b", length=40))]
    assert events[0].num_cached_tokens == 32
    assert [event.finish_reason for event in events if event.finish_reason] == [FinishReason.LENGTH]
