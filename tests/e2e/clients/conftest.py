"""The matrix as a fixture."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from loadtests.server import RunningServer
from tests.e2e.clients.clients import CLIENTS
from tests.e2e.clients.installing import ClientUnavailable, home
from tests.e2e.clients.matrix import running_matrix
from tests.e2e.clients.running import Outcome


@pytest.fixture(scope="session")
def outcome_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Outcome]]:
    """What came out for a client; skips where it cannot be installed, but not in CI.

    The clients of all tests that were selected run side by side from the first question on.
    """
    state = tmp_path_factory.mktemp("state")
    with running_matrix(_selected(request.session), home(), state, _real_server(request)) as outcomes:

        def wait(name: str) -> Outcome:
            try:
                return outcomes[name].result()
            except ClientUnavailable as error:
                if os.environ.get("CI") == "true":
                    raise
                pytest.skip(f"{CLIENTS[name].title} cannot be installed here: {error}")

        yield wait


def _selected(session: pytest.Session) -> list[str]:
    calls = (
        getattr(item, "callspec", None) for item in session.items if "outcome_of" in getattr(item, "fixturenames", ())
    )
    named = {call.params["name"] for call in calls if call is not None}
    return [name for name in CLIENTS if name in named]


def _real_server(request: pytest.FixtureRequest) -> RunningServer | None:
    try:
        server: RunningServer = request.getfixturevalue("real_server")
    except pytest.skip.Exception:
        return None
    return server
