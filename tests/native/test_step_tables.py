"""A table that points outside of what it may is refused by name, before anything is written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.backend import LaneLayout
from engine.attention.tables import LaneTables
from engine.kv.storage import KVStorage
from engine.models.step import StepInputs
from engine.native.decoder import NativeDecoder
from tests.native.forms import native_decoder, needs_native
from tests.native.shapes import SHAPES
from tests.native.steps import make_pool

pytestmark = needs_native

CONFIG = SHAPES["odd_sizes"]
VOCAB = CONFIG.vocab_size
NUM_PAGES, SIZE = 6, 4
NUM_SLOTS = NUM_PAGES * SIZE
BIG = 2**31 - 1


@dataclass
class Tables:
    """What one step is told: three rows of one lane that has five keys, and two of another."""

    token_ids: Any = (1, 2, 3, 4, 5)
    positions: Any = (2, 3, 4, 0, 1)
    slots: Any = (2, 3, 20, 8, 9)
    query_starts: Any = (0, 3, 5)
    context_lens: Any = (5, 2)
    table_starts: Any = (0, 2, 3)
    pages: Any = (0, 5, 2)
    readout_rows: Any = (4, 0)
    masks: Sequence[torch.Tensor | None] = ()

    def inputs(self, storage: KVStorage) -> StepInputs:
        """The step; what is not a tensor or an array already becomes one of the right type."""
        tables = LaneTables(
            as_array(self.query_starts), as_array(self.context_lens), as_array(self.table_starts), as_array(self.pages)
        )
        layout = LaneLayout(
            query_starts=(),
            context_lens=(),
            block_tables=(),
            slots=as_tensor(self.slots),
            masks=self.masks,
            flat=tables,
        )
        return StepInputs(
            token_ids=as_tensor(self.token_ids),
            positions=as_tensor(self.positions),
            layout=layout,
            storage=storage,
            readout_rows=as_tensor(self.readout_rows),
        )


def as_array(values: Any) -> Any:
    return values if isinstance(values, np.ndarray) else np.array(values, dtype=np.int32)


def as_tensor(values: Any) -> torch.Tensor:
    return values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=torch.int64)


@functools.cache
def native() -> NativeDecoder:
    return native_decoder(CONFIG, num_threads=2)


def fresh_storage() -> KVStorage:
    storage = make_pool(CONFIG, num_pages=NUM_PAGES, page_size=SIZE).storage
    for layer in storage.layers:
        layer.fill_(0.25)
    return storage


def check_refused(tables: Tables, match: str) -> None:
    """The step raises, K and V are as they were, and the next step is none the worse."""
    storage = fresh_storage()
    with pytest.raises(ValueError, match=match):
        native().forward(tables.inputs(storage))
    assert all(bool((layer == 0.25).all()) for layer in storage.layers)
    assert torch.equal(native().forward(Tables().inputs(storage)), valid_logits())


@functools.cache
def valid_logits() -> torch.Tensor:
    logits = native().forward(Tables().inputs(fresh_storage()))
    assert torch.isfinite(logits).all()
    return logits


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("a token past the vocabulary", {"token_ids": (1, 2, VOCAB, 4, 5)}, rf"token_ids\[2\] is {VOCAB}"),
    ("a negative token", {"token_ids": (1, 2, 3, 4, -1)}, r"token_ids\[4\] is -1"),
    ("a huge token", {"token_ids": (1, 2**62, 3, 4, 5)}, r"token_ids\[1\]"),
    ("a token that is right in 32 bits", {"token_ids": (1, 2**32 + 1, 3, 4, 5)}, r"token_ids\[1\]"),
    ("a negative position", {"positions": (2, 3, 4, -5, 1)}, r"positions\[3\] is -5"),
    ("a position past 31 bits", {"positions": (2, 3, 4, 2**31, 1)}, r"positions\[3\]"),
    ("a negative slot", {"slots": (-1, 3, 20, 8, 9)}, r"slots\[0\] is -1"),
    ("a slot past the pool", {"slots": (2, 3, NUM_SLOTS, 8, 9)}, rf"slots\[2\] is {NUM_SLOTS}"),
    ("a slot that is right in 32 bits", {"slots": (2, 3, 2**32, 8, 9)}, r"slots\[2\]"),
    ("starts that begin late", {"query_starts": (1, 3, 5)}, r"query_starts\[0\] is 1"),
    ("starts that begin before", {"query_starts": (-1, 3, 5)}, r"query_starts\[0\] is -1"),
    ("starts that fall", {"query_starts": (0, 6, 5), "context_lens": (8, 2)}, r"query_starts\[2\] is 5"),
    ("starts below zero", {"query_starts": (0, -2, 5)}, r"query_starts\[1\] is -2"),
    ("starts that end early", {"query_starts": (0, 3, 4)}, r"query_starts\[2\] is 4"),
    ("starts that end late", {"query_starts": (0, 3, 6)}, r"query_starts\[2\] is 6"),
    ("starts as far apart as 32 bits go", {"query_starts": (0, -(2**31), 5)}, r"query_starts\[1\]"),
    (
        "starts that fall further than 32 bits go",
        {"query_starts": (0, 3, -(2**31), 5), "context_lens": (5, 2, 2), "table_starts": (0, 2, 3, 3)},
        r"query_starts\[2\] is -2147483648",
    ),
    ("a context below its rows", {"context_lens": (2, 2)}, r"context_lens\[0\] is 2"),
    ("a negative context", {"context_lens": (5, -1)}, r"context_lens\[1\] is -1"),
    ("a context past its pages", {"context_lens": (9, 2)}, r"context_lens\[0\] is 9"),
    ("a huge context", {"context_lens": (5, BIG)}, r"context_lens\[1\]"),
    ("a context without pages", {"table_starts": (0, 2, 2), "pages": (0, 5)}, r"context_lens\[1\] is 2"),
    ("page starts that begin late", {"table_starts": (1, 2, 3)}, r"table_starts\[0\] is 1"),
    ("page starts that begin before", {"table_starts": (-1, 2, 3)}, r"table_starts\[0\] is -1"),
    ("page starts that fall", {"table_starts": (0, 3, 2)}, r"table_starts\[2\] is 2"),
    ("page starts below zero", {"table_starts": (0, -3, 3)}, r"table_starts\[1\] is -3"),
    ("page starts past the table", {"table_starts": (0, 2, 4)}, r"table_starts\[2\] is 4"),
    ("page starts far past the table", {"table_starts": (0, BIG, 3)}, r"table_starts\[1\]"),
    ("a page past the pool", {"pages": (0, NUM_PAGES, 2)}, rf"block_tables\[1\] is {NUM_PAGES}"),
    ("a negative page", {"pages": (0, 5, -1)}, r"block_tables\[2\] is -1"),
    ("a huge page", {"pages": (BIG, 5, 2)}, r"block_tables\[0\]"),
    ("a page that no context reaches", {"table_starts": (0, 3, 4), "pages": (0, 5, 99, 2)}, r"block_tables\[2\] is 99"),
    ("a readout past the rows", {"readout_rows": (4, 5)}, r"readout_rows\[1\] is 5"),
    ("a negative readout", {"readout_rows": (-1,)}, r"readout_rows\[0\] is -1"),
    ("too few tokens", {"token_ids": (1, 2, 3, 4)}, "positions must hold 4"),
    ("too few positions", {"positions": (1, 2, 3, 4)}, "positions must hold 5"),
    ("too many positions", {"positions": range(6)}, "positions must hold 5"),
    ("too few slots", {"slots": (1, 2, 3)}, "slots must hold 5"),
    ("too few starts", {"query_starts": (0, 5)}, "query_starts must hold 3"),
    ("too many starts", {"query_starts": (0, 3, 5, 5)}, "query_starts must hold 3"),
    ("no starts at all", {"query_starts": ()}, "query_starts must hold 3"),
    ("too few contexts", {"context_lens": (5,)}, "query_starts must hold 2"),
    ("too few page starts", {"table_starts": (0, 2)}, "table_starts must hold 3"),
    ("no page starts at all", {"table_starts": ()}, "table_starts must hold 3"),
    ("too few masks", {"masks": [None]}, "masks"),
    ("too many masks", {"masks": [None, None, None]}, "masks"),
    ("a mask with a key too many", {"masks": [torch.ones((3, 6), dtype=torch.bool), None]}, "mask must hold 15"),
    ("a mask with a row too few", {"masks": [torch.ones((2, 5), dtype=torch.bool), None]}, "mask must hold 15"),
    ("a mask of another lane's size", {"masks": [None, torch.ones((3, 5), dtype=torch.bool)]}, "mask must hold 4"),
    ("an empty mask", {"masks": [torch.ones((0, 5), dtype=torch.bool), None]}, "mask must hold 15"),
    ("a mask of numbers", {"masks": [torch.ones((3, 5)), None]}, "mask must hold 15"),
]


@pytest.mark.parametrize(("changes", "match"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_table_is_refused_by_name_and_nothing_is_written(changes: dict[str, Any], match: str) -> None:
    check_refused(changed(**changes), match)


def changed(**changes: Any) -> Tables:
    return replace(Tables(), **changes)


@pytest.mark.parametrize("name", ["token_ids", "positions", "slots", "readout_rows"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.bool, torch.float32, torch.float64])
def test_a_tensor_of_another_type_is_refused_by_name(name: str, dtype: torch.dtype) -> None:
    other = torch.tensor(getattr(Tables(), name)).to(dtype)
    check_refused(changed(**{name: other}), f"{name} must hold integers of 8 bytes")


@pytest.mark.parametrize("name", ["query_starts", "context_lens", "table_starts", "pages"])
@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.uint8, np.float32, np.float64, ">i4"])
def test_a_table_of_another_type_is_refused_by_name(name: str, dtype: Any) -> None:
    other = np.array(getattr(Tables(), name)).astype(dtype)
    table = "block_tables" if name == "pages" else name
    check_refused(changed(**{name: other}), f"{table} must hold integers of 4 bytes")


def test_memory_with_holes_is_refused() -> None:
    storage = fresh_storage()
    for name in ("token_ids", "positions", "slots", "readout_rows"):
        holes = torch.tensor(getattr(Tables(), name)).repeat_interleave(2)[::2]
        with pytest.raises((ValueError, BufferError)):
            native().forward(changed(**{name: holes}).inputs(storage))
    for name in ("query_starts", "context_lens", "table_starts", "pages"):
        values = np.array(getattr(Tables(), name), dtype=np.int32).repeat(2)[::2]
        with pytest.raises((ValueError, BufferError)):
            native().forward(changed(**{name: values}).inputs(storage))
    assert all(bool((layer == 0.25).all()) for layer in storage.layers)


def test_a_mask_with_holes_is_read_as_it_is_seen() -> None:
    mask = torch.ones((5, 5), dtype=torch.bool).tril()
    expected = native().forward(replace(Tables(), masks=[mask[2:].contiguous(), None]).inputs(fresh_storage()))
    turned = mask.T.contiguous().T[2:]
    assert not turned.is_contiguous()
    assert torch.equal(native().forward(replace(Tables(), masks=[turned, None]).inputs(fresh_storage())), expected)
    assert torch.equal(expected, valid_logits())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_kv_heads": 1}, "pages of a layer must hold"),
        ({"head_dim": 16}, "pages of a layer must hold"),
        ({"num_layers": 1}, "pages of 2 layers"),
        ({"num_layers": 3}, "pages of 2 layers"),
        ({"dtype": torch.float32}, "bfloat16"),
        ({"dtype": torch.float16}, "bfloat16"),
    ],
)
def test_a_storage_of_another_shape_or_format_is_refused(changes: dict[str, Any], match: str) -> None:
    shape: dict[str, Any] = {
        "num_layers": CONFIG.num_layers,
        "num_pages": NUM_PAGES,
        "page_size": SIZE,
        "num_kv_heads": CONFIG.num_kv_heads,
        "head_dim": CONFIG.head_dim,
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
    }
    right = fresh_storage()
    assert torch.equal(native().forward(Tables().inputs(right)), valid_logits())
    with pytest.raises(ValueError, match=match):
        native().forward(Tables().inputs(KVStorage(**(shape | changes))))
    assert torch.equal(native().forward(Tables().inputs(right)), valid_logits())


def is_valid(tables: Tables) -> bool:
    """The contract in plain Python."""
    rows, lanes = len(tables.token_ids), len(tables.context_lens)
    starts, page_starts = list(tables.query_starts), list(tables.table_starts)
    sizes = len(tables.positions) == len(tables.slots) == rows
    if not sizes or len(starts) != lanes + 1 or len(page_starts) != lanes + 1:
        return False
    rise = all(starts == sorted(starts) for starts in (starts, page_starts))
    if not rise or starts[0] != 0 or starts[-1] != rows or page_starts[0] != 0 or page_starts[-1] > len(tables.pages):
        return False
    for lane, context in enumerate(tables.context_lens):
        own = tables.pages[page_starts[lane] : page_starts[lane + 1]]
        if not starts[lane + 1] - starts[lane] <= context <= len(own) * SIZE:
            return False
        if not all(0 <= page < NUM_PAGES for page in own):
            return False
    return (
        all(0 <= token < VOCAB for token in tables.token_ids)
        and all(0 <= position < 2**31 for position in tables.positions)
        and all(0 <= slot < NUM_SLOTS for slot in tables.slots)
        and all(0 <= row < rows for row in tables.readout_rows)
    )


ODD = {
    "token_ids": (-1, 0, VOCAB - 1, VOCAB, 2**32, -(2**63), 2**63 - 1),
    "positions": (-1, 0, 2**31 - 1, 2**31, 2**63 - 1),
    "slots": (-1, 0, NUM_SLOTS - 1, NUM_SLOTS, 2**32, 2**63 - 1),
    "query_starts": (-1, 0, 1, 4, 5, 6, BIG, -BIG - 1),
    "context_lens": (-1, 0, 1, 8, 9, BIG, -BIG - 1),
    "table_starts": (-1, 0, 1, 2, 3, 4, BIG, -BIG - 1),
    "pages": (-1, 0, NUM_PAGES - 1, NUM_PAGES, BIG, -BIG - 1),
    "readout_rows": (-1, 0, 4, 5, 2**31, 2**63 - 1),
}
"""Values around the bounds of each table and at the ends of its numbers."""


def with_odd_values(draw: Callable[..., Any]) -> Tables:
    """Valid tables with a few values or lengths changed."""
    tables = Tables()
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(ODD)))
        values = list(getattr(tables, name))
        place = draw(st.integers(0, len(values)))
        kind = draw(st.sampled_from(["set", "set", "set", "insert", "remove"]))
        if kind == "insert":
            values.insert(place, draw(st.sampled_from(ODD[name])))
        elif place < len(values):
            values[place : place + 1] = [draw(st.sampled_from(ODD[name]))] if kind == "set" else []
        tables = replace(tables, **{name: tuple(values)})
    return tables


@settings(max_examples=1500, deadline=None)
@given(data=st.data())
def test_what_the_contract_allows_runs_and_all_else_is_refused(data: st.DataObject) -> None:
    tables = with_odd_values(data.draw)
    storage = fresh_storage()
    if is_valid(tables):
        logits = native().forward(tables.inputs(storage))
        assert logits.shape == (len(tables.readout_rows), VOCAB)
        assert torch.isfinite(logits).all()
        return
    names = [field.name for field in fields(tables) if field.name != "pages"] + ["block_tables"]
    with pytest.raises(ValueError, match="|".join(names)):
        native().forward(tables.inputs(storage))
    assert all(bool((layer == 0.25).all()) for layer in storage.layers)
