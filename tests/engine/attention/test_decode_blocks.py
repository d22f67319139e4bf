"""Which decode lanes are done together, and what is gathered for them."""

from __future__ import annotations

import torch

from engine.attention.backend import LaneLayout
from engine.attention.decode_blocks import cut_blocks
from engine.attention.step_work import cut_step
from engine.kv.storage import KVStorage


def storage(num_pages: int = 2000) -> KVStorage:
    return KVStorage(
        num_layers=1,
        num_pages=num_pages,
        page_size=4,
        num_kv_heads=1,
        head_dim=2,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def layout(contexts: list[int], rows: list[int] | None = None) -> LaneLayout:
    rows = rows or [1] * len(contexts)
    starts = [sum(rows[:index]) for index in range(len(rows) + 1)]
    tables, page = [], 0
    for context in contexts:
        tables.append(list(range(page, page + -(-context // 4))))
        page += len(tables[-1])
    return LaneLayout(query_starts=starts, context_lens=contexts, block_tables=tables, slots=torch.empty(0))


def test_few_lanes_are_left_alone() -> None:
    blocks, left = cut_blocks(layout([10, 20, 30]), storage(), [0, 1, 2], None)
    assert (blocks, left) == ([], [0, 1, 2])


def test_long_contexts_are_left_alone_unless_the_window_is_short() -> None:
    contexts = [10, 2000, 30, 40, 50]
    blocks, left = cut_blocks(layout(contexts), storage(), [0, 1, 2, 3, 4], None)
    assert left == [1]
    assert [block.rows.tolist() for block in blocks] == [[0, 2, 3, 4]]
    blocks, left = cut_blocks(layout(contexts), storage(), [0, 1, 2, 3, 4], 40)
    assert left == []
    assert blocks[0].context == 40


def test_padding_repeats_the_lanes_own_first_slot_and_is_masked() -> None:
    blocks, _ = cut_blocks(layout([3, 5, 6, 6]), storage(), [0, 1, 2, 3], None)
    (block,) = blocks
    keys, values = block.slots.view(2, 4, 6).tolist()
    assert keys[0] == [0, 1, 2, 0, 0, 0]
    assert keys[1] == [4, 5, 6, 7, 8, 4]
    assert values[0] == [slot + 8000 for slot in keys[0]]
    assert block.mask is not None
    assert block.mask[0, 0, 0].tolist() == [0, 0, 0, float("-inf"), float("-inf"), float("-inf")]


def test_a_block_stays_within_its_bound() -> None:
    contexts = [300] * 100
    blocks, left = cut_blocks(layout(contexts), storage(10000), list(range(100)), None)
    assert left == []
    assert sum(block.num_lanes for block in blocks) == 100
    assert max(block.num_lanes * block.context for block in blocks) <= 8192


def test_rows_come_back_in_the_order_of_the_step() -> None:
    work = cut_step(layout([50, 10, 20, 9, 400], rows=[7, 1, 1, 1, 1]), storage(), None)
    assert [block.rows.tolist() for block in work.blocks] == []
    work = cut_step(layout([50, 10, 20, 9, 40], rows=[7, 1, 1, 1, 1]), storage(), None)
    assert [block.rows.tolist() for block in work.blocks] == [[9, 7, 8, 10]]
    assert work.restore is not None
    order = torch.tensor([9, 7, 8, 10, 0, 1, 2, 3, 4, 5, 6])
    assert order[work.restore].tolist() == list(range(11))
