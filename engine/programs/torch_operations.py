"""What each operation of a device program is in torch; the meaning is `engine.programs.reference`'s.

Letters: B requests (or 1 for what all share), C numbers of a vector, K places. Values are [B, 1] or [B, C].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from engine.programs.reference import GREATEST_INT
from engine.programs.types import Kind

Tensor = torch.Tensor


def product(x: torch.Tensor, a: torch.Tensor, *, is_matrix: bool) -> torch.Tensor:
    """[B, K] times a matrix [K, R], or by vectors [B or 1, K]: [B, R] or [B, 1] float32."""
    if is_matrix:
        return x.float() @ a.float()
    return (x.double() * a.double()).sum(dim=-1, keepdim=True).float()


def without_nan(x: Tensor) -> Tensor:
    """NaNs made -inf, where there can be any."""
    return torch.where(torch.isnan(x), -torch.inf, x) if x.is_floating_point() else x


def order(x: Tensor) -> Tensor:
    """[B, C] places from the greatest to the least value, the lower of equals first."""
    x = without_nan(x)
    return (x.byte() if x.dtype == torch.bool else x).sort(dim=-1, descending=True, stable=True).indices


def top(x: Tensor, count: int) -> Tensor:
    """The first `count` of `order`."""
    if not x.is_floating_point():
        return order(x)[:, :count]
    # torch's top-k leaves open which of equals it takes. Whole numbers that hold value and place are never equal.
    bits = (without_nan(x) + 0.0).view(torch.int32)
    ranked = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    place = torch.arange(x.shape[1] - 1, -1, -1, device=x.device)
    return ((ranked << 32) | place).topk(count, dim=-1).indices


def rank(x: Tensor) -> Tensor:
    """How many come before each value in `order`."""
    places = order(x)
    return torch.empty_like(places).scatter_(1, places, torch.arange(x.shape[1], device=x.device).expand_as(places))


def total(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Sum over a vector; `valid` [B, C] says which places count."""
    if valid is not None:
        x = torch.where(valid, x, torch.zeros((), dtype=x.dtype, device=x.device))
    if x.is_floating_point():
        return x.sum(dim=-1, keepdim=True, dtype=torch.float64).float()
    return x.sum(dim=-1, keepdim=True, dtype=torch.int64)


def greatest(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """The greatest of a vector, NaNs passed over."""
    if x.device.type == "cpu" and valid is None:
        found = x.amax(dim=-1, keepdim=True)  # NaN if there is one; a look at that costs a GPU more than it saves
        if not (x.is_floating_point() and found.isnan().any()):
            return found
    x = without_nan(x)
    if valid is not None:
        x = torch.where(valid, x, _lowest(x.dtype))
    return x.amax(dim=-1, keepdim=True)


def least(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """The least of a vector, NaNs passed over."""
    if x.is_floating_point():
        x = torch.where(torch.isnan(x), torch.inf, x)
    if valid is not None:
        x = torch.where(valid, x, _highest(x.dtype))
    return x.amin(dim=-1, keepdim=True)


def softmax(x: Tensor) -> Tensor:
    """Probabilities; the sum is made in 64 bits."""
    powers = _shifted(x).exp_()
    return powers.div_(total(powers))


def log_softmax(x: Tensor) -> Tensor:
    """Log-probabilities; the sum is made in 64 bits."""
    shifted = _shifted(x)
    mass = shifted.exp().sum(dim=-1, keepdim=True, dtype=torch.float64)
    return shifted.sub_(mass.log().float())


def entropy(x: Tensor) -> Tensor:
    """Of softmax(x), in nats."""
    p = softmax(x)
    return total(torch.where(p > 0, p * log_softmax(x), 0.0)).neg()


def cumsum(x: Tensor) -> Tensor:
    """Sums up to each place, made in 64 bits."""
    if x.is_floating_point():
        return x.cumsum(dim=-1, dtype=torch.float64).float()
    return x.cumsum(dim=-1, dtype=torch.int64)


def to_int(x: Tensor) -> Tensor:
    """Cut towards zero; NaN is 0, what is too great is cut."""
    if not x.is_floating_point():
        return x.to(torch.int64)
    return torch.nan_to_num(x, nan=0.0).clamp(-GREATEST_INT, GREATEST_INT).to(torch.int64)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """x at places, 0 for places outside."""
    x, index = _same_requests(x, index)
    inside = (index >= 0) & (index < x.shape[1])
    found = x.gather(1, torch.where(inside, index, 0))
    return torch.where(inside, found, torch.zeros((), dtype=x.dtype, device=x.device))


def shift(x: Tensor, places: int) -> Tensor:
    """x of a number of places earlier; -1, 0.0 or False before the beginning."""
    kept = max(x.shape[1] - places, 0)
    before = x.new_full((len(x), x.shape[1] - kept), -1 if x.dtype == torch.int64 else 0)
    return torch.cat([before, x[:, :kept]], dim=1)


def scatter(x: Tensor, index: Tensor, new: Tensor) -> Tensor:
    """x with `new` at places; the last of several for one place, none for places outside."""
    size = max(len(x), len(index), len(new))
    width = x.shape[1]
    x, index = x.expand(size, -1), index.expand(size, -1)
    inside = (index >= 0) & (index < width)
    place = torch.where(inside, index, width)
    turn = torch.arange(index.shape[1], device=x.device).expand_as(place)
    last = torch.full((size, width + 1), -1, dtype=torch.int64, device=x.device)
    last = last.scatter_reduce_(1, place, turn, "amax")[:, :width]
    written = new if new.shape[1] == 1 else new.expand(size, -1).gather(1, last.clamp_min(0))
    return torch.where(last >= 0, written, x)


def scatter_max(x: Tensor, index: Tensor, new: Tensor) -> Tensor:
    """x, at least `new` at places; nothing is written to places outside."""
    size = max(len(x), len(index), len(new))
    width = x.shape[1]
    index = index.expand(size, -1)
    place = torch.where((index >= 0) & (index < width), index, width)
    out = torch.cat([x.expand(size, -1), x.new_zeros((size, 1))], dim=1)
    if x.dtype == torch.bool:
        return out.byte().scatter_reduce_(1, place, new.byte().expand_as(place), "amax")[:, :width].bool()
    return out.scatter_reduce_(1, place, new.expand_as(place), "amax")[:, :width]


def _floordiv(a: Tensor, b: Tensor) -> Tensor:
    # The lowest number by -1 does not fit, and processors stop at it.
    safe = torch.where((b == 0) | (b == -1), 1, b)
    quotient = torch.div(a, safe, rounding_mode="floor")
    return torch.where(b == 0, 0, torch.where(b == -1, -a, quotient))


def _mod(a: Tensor, b: Tensor) -> Tensor:
    safe = torch.where((b == 0) | (b == -1), 1, b)
    return torch.where(b == 0, 0, torch.remainder(a, safe))


def _shifted(x: Tensor) -> Tensor:
    x = x.float()
    return x - greatest(x)


def _same_requests(*values: Tensor) -> list[Tensor]:
    size = max(len(value) for value in values)
    return [value.expand(size, -1) for value in values]


def _lowest(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return False
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return True
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max


ALIKE: Mapping[str, tuple[Kind, Callable[..., Tensor]]] = {
    "add": (Kind.INT, torch.add),
    "sub": (Kind.INT, torch.sub),
    "mul": (Kind.INT, torch.mul),
    "div": (Kind.FLOAT, torch.div),
    "floordiv": (Kind.INT, _floordiv),
    "mod": (Kind.INT, _mod),
    "pow": (Kind.FLOAT, torch.pow),
    "neg": (Kind.INT, torch.neg),
    "lt": (Kind.BOOL, torch.lt),
    "le": (Kind.BOOL, torch.le),
    "gt": (Kind.BOOL, torch.gt),
    "ge": (Kind.BOOL, torch.ge),
    "eq": (Kind.BOOL, torch.eq),
    "ne": (Kind.BOOL, torch.ne),
    "and": (Kind.BOOL, torch.bitwise_and),
    "or": (Kind.BOOL, torch.bitwise_or),
    "xor": (Kind.BOOL, torch.bitwise_xor),
    "not": (Kind.BOOL, torch.logical_not),
    "exp": (Kind.FLOAT, torch.exp),
    "log": (Kind.FLOAT, torch.log),
    "sqrt": (Kind.FLOAT, torch.sqrt),
    "abs": (Kind.INT, torch.abs),
    "floor": (Kind.FLOAT, torch.floor),
    "clamp": (Kind.INT, lambda x, low, high: torch.minimum(torch.maximum(x, low), high)),
    "max": (Kind.BOOL, torch.maximum),
    "min": (Kind.BOOL, torch.minimum),
}
"""Element by element, on operands brought to their common kind, which is at least the one named."""

WHOLE: Mapping[str, Callable[..., Tensor]] = {
    "float": lambda x: x.float(),
    "int": to_int,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "entropy": entropy,
    "argmax": lambda x: without_nan(x.byte() if x.dtype == torch.bool else x).argmax(dim=-1, keepdim=True),
    "sort": lambda x: without_nan(x).gather(1, order(x)),
    "rank": rank,
    "cumsum": cumsum,
    "gather": gather,
    "scatter": scatter,
    "scatter_max": scatter_max,
    "zeros": lambda x: torch.zeros(x.shape, device=x.device),
}
"""On operands as they are."""

MASKED: Mapping[str, Callable[..., Tensor]] = {"sum": total, "max": greatest, "min": least}
"""Of one vector, which may be shorter in some requests than in others."""
