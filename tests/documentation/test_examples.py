"""Every documented example runs, and prints what its page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.server import RunningServer
from tests.documentation.blocks import Example, examples, expected, matches, run_example
from tests.documentation.conftest import ADMIN_KEY

ALL = list(examples())


TENANT_PAGES = ("docs/administration.md", "docs/quotas.md")
"""Pages whose examples talk to a server with tenants."""


@pytest.mark.real_model
@pytest.mark.parametrize("example", [pytest.param(example, id=example.id) for example in ALL if not example.not_run])
def test_the_example_runs_as_shown(example: Example, request: pytest.FixtureRequest, model_store: Path) -> None:
    has_tenants = example.page in TENANT_PAGES
    server: RunningServer = request.getfixturevalue("tenant_server" if has_tenants else "server")
    environment = {"WYE_HOME": str(model_store)}
    if has_tenants:
        environment |= {"WYE_ADMIN_KEY": ADMIN_KEY, "WYE_URL": f"http://127.0.0.1:{server.port}"}
    printed = run_example(example, port=server.port, environment=environment)
    shown = expected(example, server.port)
    if shown is not None:
        assert matches(shown, printed), f"{example.id} printed\n{printed}\nnot\n{shown}"


def test_few_examples_are_left_out_and_each_says_why() -> None:
    left_out = [example for example in ALL if example.not_run is not None]
    assert all(example.not_run for example in left_out)
    assert len(left_out) < len(ALL) / 3
