"""Cuts lanes into pieces of work for GPU programs: tiles of a lane's tokens, and parts of a long context.

Letters: W pieces, L lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.attention.tables import Counts, LaneTables

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How lanes are cut.

    Attributes:
        tile: Tokens of a lane that one program takes.
        block: Tokens of a context that it reads at a time.
        groups: Programs that do the same piece for other heads.
        programs: How many programs keep the device busy.
        least: Blocks that a part has at least.
        most_parts: Parts that a context may be cut into.
        causal: Tokens see nothing behind themselves.
    """

    tile: int
    block: int
    groups: int
    programs: int
    least: int
    most_parts: int
    causal: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class CutLanes:
    """Pieces of some lanes.

    Attributes:
        fields: [W, 12] int32, as `engine.cuda.kernels.paged_attention.Pieces` says; the longest come first.
        num_parts, num_results: As there.
    """

    fields: Counts
    num_parts: int
    num_results: int


def cut_pieces(tables: LaneTables, lanes: Counts, mask_starts: Numbers, cut: Cut) -> CutLanes:
    """Cuts some of a step's lanes, all of which have rows.

    Args:
        tables: All lanes.
        lanes: [L], those to cut.
        mask_starts: [L], where their masks begin; zeros for causal lanes.
        cut: How.
    """
    starts = tables.query_starts.astype(np.int64)
    rows, contexts = (starts[1:] - starts[:-1])[lanes], tables.context_lens[lanes].astype(np.int64)
    which, tile = _repeat(-(-rows // cut.tile))
    token = tile * cut.tile
    tokens = np.minimum(rows[which] - token, cut.tile)
    position = (contexts - rows)[which] + token
    ends = position + tokens if cut.causal else contexts[which]
    blocks = -(-ends // cut.block)
    chunk = max(cut.least, -(-int(blocks.sum()) * cut.groups // cut.programs))
    chunks = np.maximum(chunk, -(-blocks // cut.most_parts))
    parts = -(-blocks // chunks)
    several = parts > 1
    first_parts = np.cumsum(parts * several) - parts * several
    piece, part = _repeat(parts)
    begin = part * (chunks * cut.block)[piece]
    end = np.minimum(begin + (chunks * cut.block)[piece], ends[piece])
    lane = which[piece]
    fields = np.stack(
        (
            (starts[lanes][which] + token)[piece],
            tokens[piece],
            position[piece],
            tables.table_starts[lanes][lane],
            begin,
            end,
            part,
            parts[piece],
            first_parts[piece],
            (np.cumsum(several) - several)[piece],
            (mask_starts[which] + token * contexts[which])[piece],
            contexts[lane],
        ),
        axis=1,
    )
    order = np.argsort(begin - end, kind="stable")
    return CutLanes(
        fields=fields[order].astype(np.int32),
        num_parts=int((parts * several).sum()),
        num_results=int(several.sum()),
    )


def _repeat(counts: Numbers) -> tuple[Numbers, Numbers]:
    """Each index as often as its count says, and a number from zero on among its like."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
