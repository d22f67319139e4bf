"""Programs that export and import, and what they return."""

from __future__ import annotations

from typing import Any

import httpx

from tests.gateway.runs.workers import main_of
from tests.gateway.wire import CHAT, chat

EXPORT = """
ctx = await lm.context("the handbook")
return {"id": await ctx.export(**request.args), "length": ctx.length}
"""
IMPORT = """
try:
    ctx = await lm.prefix(request.args["name"], on_miss=request.args.get("on_miss", "recompute"))
except Exception as error:
    return {"error": type(error).__name__ + " " + str(error)}
if ctx is None:
    return {"none": True}
info = await ctx.info()
await ctx.append(" says")
done = await ctx.generate(max_tokens=4)
return {"length": info.length, "pending": info.pending, "text": done.text}
"""


async def run(client: httpx.AsyncClient, body: str, **args: Any) -> Any:
    """Runs a `main` of these lines and returns what it returned."""
    answer = await client.post(CHAT, json=chat(extension={"source": main_of(body), "args": args}))
    assert answer.status_code == 200, answer.text
    return answer.json()["extension"]["result"]


async def code(client: httpx.AsyncClient, body: str, **args: Any) -> str:
    """The same of one whose error is returned: built-in and code."""
    error: str = (await run(client, body, **args))["error"]
    return error.split(":")[0]
