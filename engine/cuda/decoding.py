"""A decoding step from tokens to logits, in the three forms of `engine.cuda.plan`.

Nothing here waits or decides by what lies on the device, so a graph can record all of it. Letters: M lanes, E
hidden_size, V vocabulary.
"""

from __future__ import annotations

import torch

from engine.cuda.buffers import DecodeBuffers
from engine.cuda.kernels.codes import KVCodes
from engine.cuda.kernels.decode_attention import decode_attention
from engine.cuda.kernels.embed import embed
from engine.cuda.kernels.gemv import gated_matvec, head_matvec, norm_matvec, residual_matvec
from engine.cuda.kernels.matmul import gated_matmul, head_matmul, normed_matmul, residual_matmul
from engine.cuda.kernels.rows import add_norm, embed_lanes_norm, gate
from engine.cuda.lanes import DecodeLanes
from engine.cuda.plan import DecodePlan, NarrowConfigs, SingleConfigs
from engine.cuda.products import exact_product, product
from engine.kv.storage import KVStorage
from engine.models.parameters import LayerWeights


class Decoding:
    """Launches the kernels of one kind of step.

    Args:
        plan: Which.
        lanes: Whose tokens; read on the device.
        storage: K and V.
        buffers: Room for what kernels leave for each other.
        last_tokens: [rows] int64, newest token of each row of device state.
        pdl: Kernels may begin before those in front of them have ended.
    """

    def __init__(
        self,
        plan: DecodePlan,
        lanes: DecodeLanes,
        storage: KVStorage,
        buffers: DecodeBuffers,
        last_tokens: torch.Tensor,
        *,
        pdl: bool,
    ) -> None:
        self._plan = plan
        self._model = plan.model
        self._lanes = lanes
        self._storage = storage
        self._buffers = buffers
        self._last_tokens = last_tokens
        self._pdl = pdl

    def launch(self) -> torch.Tensor:
        """Starts the step, and returns logits [M, V] float32, a view of the buffers."""
        if self._plan.single is not None:
            self._launch_single(self._plan.single)
        elif self._plan.narrow is not None:
            self._launch_narrow(self._plan.narrow)
        else:
            self._launch_wide()
        return self._buffers.logits[: self._plan.width]

    def _launch_single(self, configs: SingleConfigs) -> None:
        buffers, pdl, eps = self._buffers, self._pdl, self._model.config.norm_eps
        weights, hidden, qkv = self._model.weights, buffers.hidden[:1], buffers.qkv[:1]
        attended, gated = buffers.attended[:1], buffers.gated[:1]
        self._embed(hidden, None, None)
        for index, layer in enumerate(weights.layers):
            scales = layer.scales
            norm_matvec(
                hidden,
                layer.input_norm,
                eps,
                layer.qkv,
                layer.qkv_bias,
                qkv,
                config=configs.qkv,
                pdl=pdl,
                scale=scales.qkv,
            )
            self._attend(index, layer, qkv, attended)
            residual_matvec(attended, layer.output, hidden, config=configs.output, pdl=pdl, scale=scales.output)
            gated_matvec(
                hidden,
                layer.post_norm,
                eps,
                layer.gate_up,
                gated,
                config=configs.gate_up,
                pdl=pdl,
                scale=scales.gate_up,
            )
            residual_matvec(gated, layer.down, hidden, config=configs.down, pdl=pdl, scale=scales.down)
        head_matvec(
            hidden,
            weights.norm,
            eps,
            weights.head,
            buffers.logits[:1],
            config=configs.head,
            pdl=pdl,
            scale=weights.head_scale,
        )

    def _launch_narrow(self, configs: NarrowConfigs) -> None:
        plan, buffers, model = self._plan, self._buffers, self._model
        pdl, eps, rows, width = self._pdl, model.config.norm_eps, plan.rows, plan.width
        hidden, normed, qkv = buffers.hidden[:rows], buffers.normed[:rows], buffers.qkv[:rows]
        attended, gated = buffers.attended[:rows], buffers.gated[:rows]
        size = model.config.hidden_size
        first = buffers.squares_of(0, rows, configs.down.tiles(size))
        second = buffers.squares_of(1, rows, configs.output.tiles(size))
        shared = {"workspace": buffers.workspace, "counters": buffers.counters}
        self._embed(hidden, normed, first)
        for index, layer in enumerate(model.weights.layers):
            scales = layer.scales
            normed_matmul(
                normed,
                first,
                eps,
                layer.qkv,
                layer.qkv_bias,
                qkv,
                num_lanes=width,
                config=configs.qkv,
                pdl=pdl,
                scale=scales.qkv,
                **shared,
            )
            self._attend(index, layer, qkv, attended)
            residual_matmul(
                attended,
                layer.output,
                hidden,
                layer.post_norm,
                normed,
                second,
                num_lanes=width,
                config=configs.output,
                pdl=pdl,
                scale=scales.output,
                **shared,
            )
            gated_matmul(
                normed,
                second,
                eps,
                layer.gate_up,
                gated,
                num_lanes=width,
                config=configs.gate_up,
                pdl=pdl,
                scale=scales.gate_up,
                **shared,
            )
            residual_matmul(
                gated,
                layer.down,
                hidden,
                model.norm_before(index + 1),
                normed,
                first,
                num_lanes=width,
                config=configs.down,
                pdl=pdl,
                scale=scales.down,
                **shared,
            )
        head_matmul(
            normed,
            first,
            eps,
            model.weights.head,
            buffers.logits[:rows],
            num_lanes=width,
            config=configs.head,
            pdl=pdl,
            scale=model.weights.head_scale,
        )

    def _launch_wide(self) -> None:
        buffers, model, width = self._buffers, self._model, self._plan.width
        eps, weights = model.config.norm_eps, model.weights
        hidden, normed, gated = buffers.hidden[:width], buffers.normed[:width], buffers.gated[:width]
        lanes, attended = self._lanes, buffers.attended[:width]
        embed_lanes_norm(
            lanes.given, lanes.rows, self._last_tokens, weights.embedding, model.norm_before(0), eps, hidden, normed
        )
        for index, layer in enumerate(weights.layers):
            scales = layer.scales
            self._attend(index, layer, product(normed, layer.qkv, layer.qkv_bias, scales.qkv), attended)
            add_norm(hidden, product(attended, layer.output, scale=scales.output), layer.post_norm, eps, normed)
            gate(product(normed, layer.gate_up, scale=scales.gate_up), gated)
            add_norm(hidden, product(gated, layer.down, scale=scales.down), model.norm_before(index + 1), eps, normed)
        exact_product(normed, weights.head, buffers.logits[:width], weights.head_scale)

    def _embed(self, hidden: torch.Tensor, normed: torch.Tensor | None, squares: torch.Tensor | None) -> None:
        lanes, model = self._lanes, self._model
        embed(
            lanes.given,
            model.weights.embedding,
            None if normed is None else model.norm_before(0),
            hidden,
            normed,
            squares,
            rows=lanes.rows,
            last_tokens=self._last_tokens,
            num_lanes=self._plan.width,
            pdl=self._pdl,
        )

    def _attend(self, index: int, layer: LayerWeights, qkv: torch.Tensor, attended: torch.Tensor) -> None:
        plan, model, lanes, buffers = self._plan, self._model, self._lanes, self._buffers
        config = model.config
        q_norm, k_norm = model.head_norms(layer)
        decode_attention(
            qkv,
            lanes.positions,
            lanes.context_lens,
            lanes.tables,
            self._storage.layers[index],
            model.cos,
            model.sin,
            q_norm,
            k_norm,
            config.norm_eps,
            config.head_dim**-0.5,
            config.sliding_window,
            buffers.partials,
            buffers.lse,
            buffers.arrivals,
            attended,
            num_lanes=plan.width,
            config=plan.attention,
            pdl=self._pdl and plan.form != "wide",
            codes=KVCodes.of(self._storage, index),
        )
