"""Every documented example runs, and prints what its page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.server import RunningServer
from tests.documentation.blocks import Example, examples, expected, matches, run_example

ALL = list(examples())


@pytest.mark.real_model
@pytest.mark.parametrize("example", [pytest.param(example, id=example.id) for example in ALL if not example.not_run])
def test_the_example_runs_as_shown(example: Example, server: RunningServer, model_store: Path) -> None:
    printed = run_example(example, port=server.port, environment={"WYE_HOME": str(model_store)})
    shown = expected(example, server.port)
    if shown is not None:
        assert matches(shown, printed), f"{example.id} printed\n{printed}\nnot\n{shown}"


def test_few_examples_are_left_out_and_each_says_why() -> None:
    left_out = [example for example in ALL if example.not_run is not None]
    assert all(example.not_run for example in left_out)
    assert len(left_out) < len(ALL) / 3
