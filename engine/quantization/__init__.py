"""Weights, and K and V, in one byte a number: `int8` (-127..127) and `fp8` (float8 e4m3fn, up to 448), with scales.

Nothing here is ever on unless it was asked for. What it costs in quality is in docs/performance.md.

Weights: `weight[n, k] = values[n, k] * scale[n]`
    values  [N, K] int8 or float8_e4m3fn, contiguous, where `LayerWeights` and `DecoderWeights` have their matrices
    scale   [N] float32, in `LayerWeights.scales` and `DecoderWeights.head_scale`; None where weights are not quantized
    A product multiplies `inputs[t, k] * values[n, k]` (both formats are exact in bfloat16), sums in float32, multiplies
    by `scale[n]` and adds the bias, which has the dtype of the embedding. The embedding itself is never quantized.

K and V, in `KVStorage` (P pages, S page_size, G key/value heads, D head_dim), for each layer:
    layers[l]           [2, P, S, G, D] int8 or float8_e4m3fn: codes of K (0) and V (1), as pages of other formats lie
    scales[l]           [2, P, G, S] bfloat16: one scale a token and head; slots of a page are consecutive
    smoothing.mean[l]   [G, D] float32
    smoothing.scale[l]  [G, D] float32, positive
    Both of smoothing are measured once when the engine starts (`engine.quantization.calibration`), before anything is
    written, and never change afterwards: a captured graph may keep their addresses.
Writing a token, `k` and `v` [G, D], k rotated, all in float32:
    k' = (k - mean) / smoothing.scale
    s  = bfloat16(max over D of |k'| / most), most = 127 or 448; for V the same with v itself
    code = k' / s (0 where s is 0), for int8 rounded to the nearest whole number, ties to even; clamped to -most..most
Reading, for a query head [D] of group g:
    q'      = q * smoothing.scale[g]                          once a query
    score_t = sum over D of q' * code_K[t] * scales[K, t]     times the ordinary factor
    out     = sum over t of (p_t * scales[V, t]) * code_V[t]
    The mean is not added back: q . mean is the same for every token of a row, which softmax does not notice
    (SageAttention, arXiv 2410.02367). Dividing channels by what they typically hold spares all of them the coarse scale
    of the largest (KIVI, arXiv 2402.02750); for fp8 the scale is 1.
"""
