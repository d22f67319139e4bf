"""Pictures of the console for the docs: `python -m scripts.screenshots`, of a server of its own with life on it."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Page, async_playwright

from loadtests.server import CHECKOUT, RunningServer, running_server
from scripts.browser import find_browser

PICTURES = CHECKOUT / "docs" / "pictures"
ADMIN_KEY = "key-for-pictures-only"
SIZE = {"width": 1180, "height": 760}
ROOM_S = 120.0

TREE = """
async def main(request, lm):
    prompt = await lm.context(request.messages)
    for round in range(2):
        branches = await prompt.fork(3)
        answers = await asyncio.gather(
            *[b.generate(max_tokens=30 + 15 * i, temperature=0.9, seed=i) for i, b in enumerate(branches)]
        )
        best = max(answers, key=lambda answer: answer.mean_logprob)
        print(f"round {round}: {best.mean_logprob:.2f}")
        await lm.emit(best.text)
        await prompt.append(best.text)
        for branch in branches:
            await branch.release()
"""


HOLDER = """
async def main(request, lm):
    ctx = await lm.context(request.messages)
    await ctx.prefill()
    branches = await ctx.fork(3)
    for place, branch in enumerate(branches):
        await branch.generate(max_tokens=40 + 60 * place)
        await branch.retain(ttl_s=100 + 60 * place, max_bytes=2**30, value=0.3 + 0.3 * place, on_pressure="host")
    await lm.sleep(100)
"""


async def keep(server: RunningServer, keys: list[str]) -> None:
    """Has some KV kept in all the ways there are: by a program, as a prefix, for requests."""
    base = server.url
    handbook = [{"role": "system", "content": "You know the handbook of the harbour by heart. " * 40}]
    talk = [{"role": "user", "content": "Tell me of the sea, of ships, and of the wind. " * 12}]
    held: Any = {"messages": talk, "extension": {"source": HOLDER, "limits": {"wall_s": 110}}}
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {keys[2]}"}, timeout=ROOM_S) as client:
        holding = asyncio.create_task(client.post(f"{base}/chat/completions", json=held))
        try:
            await client.post(f"{base}/prefixes", json={"name": "harbour/handbook", "messages": handbook, "ttl": 3600})
            authorization = {"authorization": f"Bearer {keys[0]}"}
            for value in (0.9, 0.6, 0.2):
                body = {"messages": [*talk, {"role": "user", "content": f"{value}"}], "max_tokens": 60}
                body["retention"] = {"ttl_s": 900 * value, "value": value}
                await client.post(f"{base}/chat/completions", json=body, headers=authorization)
            await asyncio.sleep(ROOM_S)
        finally:
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)


async def load(server: RunningServer, key: str) -> None:
    """Keeps some requests of a tenant running."""
    body = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 1500, "temperature": 1.0}
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=ROOM_S) as client:
        while True:
            await client.post(f"{server.url}/chat/completions", json=body)


async def tenants(server: RunningServer) -> list[str]:
    """Makes tenants with limits; returns a key of each."""
    base = server.url
    keys = []
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {ADMIN_KEY}"}) as client:
        for name, quota in (("Lyon", 40_000_000), ("Marseille", 9_000_000), ("Nantes", None)):
            tenant = (await client.post(f"{base}/organization/projects", json={"name": name})).json()["id"]
            limits = {"kv_kib_seconds": quota, "kv_window": "day@Europe/Paris", "requests_per_minute": 600}
            await client.post(f"{base}/admin/kv_limits/{tenant}", json=limits)
            key = (await client.post(f"{base}/admin/projects/{tenant}/api_keys", json={"name": "app"})).json()
            keys.append(key["value"])
    return keys


async def take(page: Page, name: str, *, full_page: bool = True) -> None:
    """Writes one picture."""
    await page.screenshot(path=PICTURES / f"{name}.png", full_page=full_page)
    print(f"wrote docs/pictures/{name}.png")


async def visit(server: RunningServer, keys: list[str]) -> None:
    """Opens each view and takes its picture."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": SIZE["width"], "height": SIZE["height"]})
        await page.goto(f"http://127.0.0.1:{server.port}/console")
        await page.get_by_role("dialog").get_by_label("Administrator's key").fill(ADMIN_KEY)
        await page.get_by_role("button", name="Continue").click()
        await page.wait_for_timeout(12_000)
        await take(page, "console-overview")
        await page.get_by_role("link", name="Memory").click()
        await page.wait_for_timeout(3_000)
        await take(page, "console-memory")
        await page.emulate_media(color_scheme="dark")
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.get_by_role("slider").press("Home")
        await page.wait_for_timeout(2_000)
        await take(page, "console-memory-phone", full_page=False)
        await page.emulate_media(color_scheme="light")
        await page.set_viewport_size({"width": SIZE["width"], "height": SIZE["height"]})
        await page.get_by_role("link", name="Tenants").click()
        await page.wait_for_timeout(2_000)
        await take(page, "console-tenants")
        await page.get_by_role("link", name="Playground").click()
        await page.get_by_role("dialog").get_by_label("API key").fill(keys[2])
        await page.get_by_role("button", name="Continue").click()
        await page.get_by_label("Source").fill(TREE.lstrip())
        await page.get_by_role("button", name="Run").click()
        await page.get_by_role("heading", name="Outcome").wait_for(timeout=ROOM_S * 1000)
        await take(page, "console-playground")
        await browser.close()


async def main() -> int:
    """Takes all pictures."""
    if find_browser() is None:
        print("no Chromium here: run `make browser`", file=sys.stderr)
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as state:
        environment = {"WYE_ADMIN_KEY": ADMIN_KEY, "WYE_API_KEYS": "key-of-nobody", "WYE_STATE_DIR": state}
        args = ["--kv-pages", "600"]
        with running_server("smollm2-135m", args=args, environment=environment, log_path=Path(state) / "log") as server:
            keys = await tenants(server)
            loads = [asyncio.create_task(load(server, keys[number])) for number in (0, 0, 0, 1)]
            loads.append(asyncio.create_task(keep(server, keys)))
            try:
                await visit(server, keys)
            finally:
                for one in loads:
                    one.cancel()
                await asyncio.gather(*loads, return_exceptions=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
