"""Points llama.cpp's server tests at a running server. They know how to do so themselves; what is left is the paths
that they use without `/v1`, and models that need not be fetched.
"""

from __future__ import annotations

import pytest
import requests

BARE = ("/chat/completions", "/models", "/responses")

_request = requests.Session.request


def _request_below_v1(self: requests.Session, method: str, url: str, **options: object) -> requests.Response:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if (slash + path).startswith(BARE):
        url = f"{scheme}://{host}/v1/{path}"
    return _request(self, method, url, **options)  # type: ignore[arg-type]


requests.Session.request = _request_below_v1  # type: ignore[assignment, method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the presets of servers unloaded: nothing is started here."""
    for item in items:
        fixtures = getattr(item, "fixturenames", [])
        if "load_server_presets" in fixtures:
            fixtures.remove("load_server_presets")
