"""From settings to a running loop: the one place that puts the engine's parts together."""

from __future__ import annotations

import dataclasses
import logging
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from engine.adapters.changes import Adapter
from engine.adapters.loading import load_adapters
from engine.adapters.passes import PassAdapters
from engine.adapters.shelf import AdapterShelf
from engine.adapters.sites import site_shapes
from engine.adapters.split import SplitModel
from engine.attention.preparing import prepare_backend
from engine.attention.reader import AttentionReader
from engine.attention.scores import Gather
from engine.attention.sdpa import SdpaBackend
from engine.attention.select import select_backend
from engine.config import EngineConfig
from engine.constraints.compiler import ConstraintCompiler
from engine.constraints.vocabulary import VocabularyBytes
from engine.cuda.caches import keep_kernels
from engine.cuda.late_kernels import LateKernels
from engine.drafting.costs import row_cost
from engine.errors import ModelLoadError
from engine.kv.manager import KVManager
from engine.kv.storage import KVStorage
from engine.kv.tiers import HostStore
from engine.loop import EngineLoop
from engine.models.checkpoint import Checkpoint, open_checkpoint
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder, load_model, num_parameters
from engine.models.late import LateDecoder
from engine.models.step import StepModel
from engine.native import pages
from engine.quantization.calibration import calibrate
from engine.quantization.formats import dtype_name
from engine.request import AdapterInfo, EngineInfo
from engine.resolve import MAX_EXTRA_BYTES, Placement, context_length, kv_page_bytes, place, pool_pages
from engine.runner.decoding import DecodeStep
from engine.runner.runner import ModelRunner
from engine.sampling.state import SamplerState
from engine.scheduling.scheduler import Scheduler
from engine.warm_up import warm_up

if TYPE_CHECKING:
    from engine.cuda.model import CudaModel

log = logging.getLogger(__name__)


def build_loop(config: EngineConfig) -> EngineLoop:
    """Loads a model and makes it ready to serve; takes as long as reading the weights does.

    Raises:
        ModelLoadError: Something about the model or the settings does not work; the message says what.
    """
    started_s = time.perf_counter()
    place(config)  # what cannot be had here is refused before anything is read
    checkpoint = open_checkpoint(config.model)
    compiler = ConstraintCompiler(partial(_vocabulary, Path(config.model), checkpoint.config))
    try:
        loop = _build(config, checkpoint, compiler, started_s)
        compiler.wait_loaded()
    except BaseException:
        compiler.close()
        raise
    _announce(loop.info)
    return loop


def _build(config: EngineConfig, checkpoint: Checkpoint, compiler: ConstraintCompiler, started_s: float) -> EngineLoop:
    model_config = checkpoint.config
    placement = place(config, model_config)
    if placement.step.is_fallback:
        log.info("%s; serving with torch", placement.step.reason)
    max_model_len = context_length(config, model_config)
    loaded = _load(checkpoint, config, placement)
    num_pages = pool_pages(config, model_config, placement, max_model_len)
    page_bytes = kv_page_bytes(config, model_config, placement.kv_dtype)
    adapters = loaded.adapters
    info = EngineInfo(
        epoch=uuid.uuid4().hex,
        model_path=config.model,
        architecture=model_config.architecture,
        fingerprint=checkpoint.fingerprint(),
        vocab_size=model_config.vocab_size,
        hidden_size=model_config.hidden_size,
        eos_token_ids=model_config.eos_token_ids,
        max_model_len=max_model_len,
        page_size=config.kv.page_size,
        num_pages=num_pages,
        page_bytes=page_bytes,
        host_pages=config.kv.host_bytes // page_bytes,
        device=str(placement.device),
        step=loaded.step,
        dtype=placement.weights,
        kv_dtype=dtype_name(placement.kv_dtype),
        attention_backend=loaded.attention,
        defaults=checkpoint.defaults,
        generates=model_config.has_head,
        adapters=() if adapters is None else tuple(_described(adapter) for adapter in adapters.loaded),
        sites={} if adapters is None else site_shapes(model_config),
        num_parameters=num_parameters(loaded.model),
        num_layers=model_config.num_layers,
        num_heads=model_config.num_heads,
        load_s=time.perf_counter() - started_s,
        incarnation=time.time_ns() // 1_000_000,
    )
    reader = _reader(checkpoint, config, placement, loaded)
    info = msgspec.structs.replace(info, reads_attention=reader is not None)
    runner = _runner(placement, info, loaded, reader)
    backend = getattr(loaded.model, "backend", None)
    if backend is not None:  # which kernels it has it knows once it is made ready
        info = msgspec.structs.replace(info, attention_backend=backend.name)
    make_scheduler = partial(_scheduler, config, placement, info, model_config.sliding_window)
    if placement.step.is_cuda:
        warm_up(EngineLoop(info=info, scheduler=make_scheduler(), runner=runner), placement.max_num_seqs)
    return EngineLoop(
        info=info,
        scheduler=make_scheduler(),
        runner=runner,
        compiler=compiler,
        adapters=None if adapters is None else PassAdapters(adapters, model_config, placement.device, loaded.late),
        late_kernels=LateKernels() if placement.step.is_cuda else None,
        overlap=config.scheduling.overlap,
        check_integrity=config.check_integrity,
    )


def _vocabulary(path: Path, config: ModelConfig) -> VocabularyBytes | None:
    """The model's tokens as constraints need them; None for a model without text or without an end."""
    from engine.text.tokenizer import Tokenizer  # not before it is needed, and not by the engine's core

    if not path.exists() or not config.eos_token_ids:
        return None
    try:
        tokenizer = Tokenizer.load(path)
    except ModelLoadError as error:
        log.info("output cannot be constrained: %s", error)
        return None
    return VocabularyBytes(
        tokens=[tokenizer.token_bytes(token_id) for token_id in range(config.vocab_size)],
        special_ids=sorted(token_id for token_id in tokenizer.special_ids if token_id < config.vocab_size),
        eos_token_ids=config.eos_token_ids,
        encode=partial(tokenizer.encode, add_special=False),
    )


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model and what `EngineInfo` says of it."""

    model: StepModel
    step: str
    attention: str
    adapters: AdapterShelf | None
    """What lanes with an adapter are computed by; None where no step has any."""
    cuda: CudaModel | None = None
    """Weights of the CUDA step, if it is used."""
    late: LateDecoder | None = None
    """Torch beside a step that has its own form of the weights, where there may be one and none is loaded yet."""


def _load(checkpoint: Checkpoint, config: EngineConfig, placement: Placement) -> _Loaded:
    is_native = placement.step.is_native
    if placement.device.type == "cuda":
        keep_kernels(config.kernel_dir)  # before a library that compiles any is loaded
    if placement.step.is_cuda:
        return _load_cuda(checkpoint, config, placement)
    dtype = torch.bfloat16 if is_native else placement.dtype
    adapters = AdapterShelf(load_adapters(config.adapters, checkpoint, dtype=dtype, device=placement.device))
    load_torch = partial(
        load_model,
        checkpoint,
        device=placement.device,
        dtype=dtype,
        adapters=adapters,
        quantized=placement.quantized,
        quantized_kv=placement.quantized_kv,
    )
    if not is_native:
        model = load_torch(attention=config.attention)
        return _Loaded(model, "torch", model.backend.name, adapters)
    from engine.native.decoder import load_native  # only where its module is known to load

    native = load_native(checkpoint, num_threads=placement.num_threads, int8=placement.weights == "int8")
    step = f"native {native.form}"
    if not adapters.loaded:
        late = _late(checkpoint, config, placement, adapters, num_parameters(native))
        if late is None:
            return _Loaded(native, step, "native", None)
        return _Loaded(SplitModel(native, pages.OnNativePages(late)), step, "native", adapters, late=late)
    log.info("lanes with an adapter are computed by torch: the native step has none; the weights are held twice")
    adapted = load_torch()
    behind = pages.OnNativePages(adapted.over(SdpaBackend()))
    split = SplitModel(native, adapted, behind_plain=behind, is_behind_plain=adapters.is_behind_plain)
    return _Loaded(split, step, "native", adapters)


def _load_cuda(checkpoint: Checkpoint, config: EngineConfig, placement: Placement) -> _Loaded:
    from engine.cuda.decoder import load_cuda  # only where Triton is known to be there

    device, dtype = placement.device, placement.dtype
    adapters = AdapterShelf(load_adapters(config.adapters, checkpoint, dtype=dtype, device=device))
    decoder = load_cuda(
        checkpoint,
        device=device,
        dtype=dtype,
        attention=config.attention,
        quantized=placement.quantized,
        quantized_kv=placement.quantized_kv,
    )
    name = decoder.backend.name
    if not adapters.loaded:
        return _Loaded(decoder, "cuda", name, None, decoder.model)
    log.info("lanes with an adapter are computed by torch: the CUDA step has none")
    weights = decoder.model.weights
    shared = dataclasses.replace(weights, layers=list(weights.layers))
    backend = select_backend(config.attention, device, quantized_kv=placement.quantized_kv)
    adapted = Decoder(checkpoint.config, shared, backend, adapters)
    return _Loaded(SplitModel(decoder, adapted), "cuda", name, adapters, decoder.model)


def _described(adapter: Adapter) -> AdapterInfo:
    return AdapterInfo(name=adapter.name, kind=adapter.kind, rank=adapter.rank, digest=adapter.digest)


def _reader(
    checkpoint: Checkpoint, config: EngineConfig, placement: Placement, loaded: _Loaded
) -> AttentionReader | None:
    """Finds out what rows attend to, with the weights that there are; None where nobody may ask."""
    if config.attention_scores == "off" or not checkpoint.config.has_head:
        return None
    parts = loaded.model.parts if isinstance(loaded.model, SplitModel) else (loaded.model,)
    gather: Gather = pages.gather if placement.step.is_native else KVStorage.gather
    if isinstance(parts[-1], Decoder):
        is_behind_plain = None if loaded.adapters is None else loaded.adapters.is_behind_plain
        return AttentionReader(parts[-1], gather=gather, is_behind_plain=is_behind_plain)
    if loaded.cuda is not None:
        weights = dataclasses.replace(loaded.cuda.weights, layers=list(loaded.cuda.weights.layers))
        return AttentionReader(Decoder(checkpoint.config, weights, SdpaBackend()))
    if loaded.late is None or loaded.adapters is None:
        return None
    return AttentionReader(late=loaded.late, gather=gather, is_behind_plain=loaded.adapters.is_behind_plain)


def _late(
    checkpoint: Checkpoint, config: EngineConfig, placement: Placement, adapters: AdapterShelf, size: int
) -> LateDecoder | None:
    """Torch beside the native step, with weights of that many numbers; None where they may not be held twice."""
    if config.attention_scores == "off" or not checkpoint.config.has_head:
        return None
    if config.attention_scores == "auto" and size * torch.bfloat16.itemsize > MAX_EXTRA_BYTES:
        return None
    load = partial(_load_again, config.model, checkpoint.fingerprint(), placement.device, adapters)
    return LateDecoder(checkpoint.config, load)


def _load_again(model: str, fingerprint: str, device: torch.device, adapters: AdapterShelf) -> Decoder:
    """The weights that serve, as torch takes them.

    Raises:
        ModelLoadError: They are not there any more.
    """
    checkpoint = open_checkpoint(model)
    if checkpoint.fingerprint() != fingerprint:
        raise ModelLoadError(f"{model}: its weights are others than those that serve by now")
    return load_model(checkpoint, device=device, dtype=torch.bfloat16, attention="sdpa", adapters=adapters)


def _runner(placement: Placement, info: EngineInfo, loaded: _Loaded, reader: AttentionReader | None) -> ModelRunner:
    model = loaded.model
    storage = KVStorage(
        num_layers=model.config.num_layers,
        num_pages=info.num_pages,
        page_size=info.page_size,
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        dtype=placement.kv_dtype,
        device=placement.device,
        # The CUDA step's queries have the dtype of its weights, and codes become what queries are.
        read_dtype=placement.dtype if placement.quantized_kv and placement.step.is_cuda else None,
    )
    if placement.quantized_kv:
        calibrate(model, storage, info.max_model_len)
    for part in model.parts if isinstance(model, SplitModel) else (model,):
        backend = getattr(part, "backend", None)  # the native step attends by itself
        if backend is not None:
            prepare_backend(backend, storage, model.config.num_heads, model.config.sliding_window)
    state = SamplerState(num_rows=placement.max_num_seqs, vocab_size=info.vocab_size, device=placement.device)
    num_threads = None
    if placement.device.type == "cpu":
        # Beside the native step torch has small work only, which waking its threads would make slower.
        is_small = placement.step.is_native and not info.adapters
        num_threads = 1 if is_small else placement.num_threads
    return ModelRunner(
        model=model,
        storage=storage,
        state=state,
        num_threads=num_threads,
        team=getattr(model, "team", None),
        host=HostStore(storage, info.host_pages) if info.host_pages else None,
        decode=None if loaded.cuda is None else _graphs(loaded, storage, state, info, placement.max_batch_tokens),
        reader=reader,
    )


def _graphs(loaded: _Loaded, storage: KVStorage, state: SamplerState, info: EngineInfo, most_tokens: int) -> DecodeStep:
    """Steps of the CUDA step, compiled and recorded: decoding, and the commonest with prompts; others are later."""
    from engine.cuda.decoder import CudaDecoder
    from engine.cuda.graphs import GraphDecoder
    from engine.cuda.prompt_graphs import PromptGraphs
    from engine.cuda.recordings import PROGRAMS_VARIABLE, PROMPTS_VARIABLE, is_wanted
    from engine.cuda.status import cuda_status

    assert loaded.cuda is not None
    prompts = None
    if is_wanted(PROMPTS_VARIABLE):
        parts = loaded.model.parts if isinstance(loaded.model, SplitModel) else (loaded.model,)
        whole = next(part for part in parts if isinstance(part, CudaDecoder))
        prompts = PromptGraphs(whole, storage)
        whole.recorded = prompts.forward

    started_s = time.perf_counter()
    longest = min(info.max_model_len, info.pool_tokens)
    decoder = GraphDecoder(
        loaded.cuda,
        storage,
        state,
        max_lanes=state.num_rows,
        max_context=longest,
        pdl=cuda_status(storage.device).has_pdl,
        prompts=prompts,
        records_programs=is_wanted(PROGRAMS_VARIABLE),
    )
    decoder.record(("plain", "full", "logits"))
    if prompts is not None:
        prompts.record(most_tokens)
    log.info("steps recorded in %.1f s", time.perf_counter() - started_s)
    return decoder


def _scheduler(config: EngineConfig, placement: Placement, info: EngineInfo, window: int | None) -> Scheduler:
    kv = KVManager(
        num_pages=info.num_pages,
        page_size=info.page_size,
        fingerprint=info.fingerprint,
        kv_dtype=f"{info.kv_dtype} of {info.step}, {info.dtype} weights",
        prefix_cache=config.kv.prefix_cache,
        page_kib=info.page_kib,
    )
    return Scheduler(
        kv,
        max_num_seqs=placement.max_num_seqs,
        max_batch_tokens=placement.max_batch_tokens,
        max_waiting=config.scheduling.max_waiting,
        eos_token_ids=info.eos_token_ids,
        draw_seed=_seed_source(config.seed),
        window=window,
        adapters=info.adapters,
        draft_cost=row_cost(info.step, info.device, info.dtype),
        vocab_size=info.vocab_size,
        host_pages=info.host_pages,
    )


def _announce(info: EngineInfo) -> None:
    log.debug(
        "%s (%.0f M parameters) on %s in %s, %s step, attention %s, "
        "%d pages of %d tokens in %s (%.0f MiB), loaded in %.1f s",
        info.model_path,
        info.num_parameters / 1e6,
        info.device,
        info.dtype,
        info.step,
        info.attention_backend,
        info.num_pages,
        info.page_size,
        info.kv_dtype,
        info.num_pages * info.page_bytes / 2**20,
        info.load_s,
    )


def _seed_source(seed: int | None) -> Callable[[], int]:
    source = random.SystemRandom() if seed is None else random.Random(seed)
    return lambda: source.getrandbits(63)
