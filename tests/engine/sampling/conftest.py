"""Samplers in every form, and examples judged by what they find, not by how long a busy machine takes over them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.engine.sampling.benches import FORMS, Bench

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """A form of the sampler, and that of all benches in a module's tests."""
    before = Bench.default_form
    Bench.default_form = request.param
    yield request.param
    Bench.default_form = before
