"""The console in a real Chromium."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from loadtests.server import RunningServer, running_server
from scripts.browser import find_browser
from tests.e2e.conftest import connect

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium here: run `make browser`")

PHONE = {"width": 360, "height": 740}
KEY = "a-key-of-the-settings"
ADMIN_KEY = "the-key-of-the-administrator"
PATIENCE_MS = 60_000

PROGRAM = """
async def main(request, lm):
    prompt = await lm.context(request.messages)
    branches = await prompt.fork(request.args.get("n", 1))
    for branch in branches:
        await branch.generate(max_tokens=2)
    print("two branches")
    await lm.emit_event("looked", {"at": 1})
    return {"branches": len(branches)}
"""


SCRIPT_TOOL = {
    "name": "doubler",
    "kind": "script",
    "effect": "pure",
    "description": "Doubles a number.",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    "script": {"source": "async def main(request, lm):\n    return {'twice': request.args['n'] * 2}\n"},
}


NUM_COLOURS = """
canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, 40);
    return new Set(new Uint32Array(data.buffer)).size;
}
"""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # Chromium's own sandbox does not start for root in a container; pages here are ours.
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page that fails the test if any script on it does."""
    page = await browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    yield page
    assert problems == []


@pytest.fixture(scope="module")
def locked(
    tiny_model: Path, start_options: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server that wants a key."""
    environment = {"OMP_NUM_THREADS": "1", "WYE_API_KEYS": KEY}
    log_path = tmp_path_factory.mktemp("locked") / "log"
    with running_server(str(tiny_model), args=start_options, environment=environment, log_path=log_path) as running:
        yield running


@pytest.fixture(scope="module")
def administered(
    tiny_model: Path, start_options: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server with tenants."""
    state = tmp_path_factory.mktemp("administered")
    environment = {
        "OMP_NUM_THREADS": "1",
        "WYE_ADMIN_KEY": ADMIN_KEY,
        "WYE_API_KEYS": KEY,
        "WYE_STATE_DIR": str(state / "state"),
    }
    with running_server(
        str(tiny_model), args=start_options, environment=environment, log_path=state / "log"
    ) as running:
        yield running


def address(server: RunningServer, view: str = "") -> str:
    return f"http://127.0.0.1:{server.port}/console{view}"


async def test_the_overview_shows_the_engine_and_what_kv_is_held(server: RunningServer, page: Page) -> None:
    await page.goto(address(server))
    await expect(page.get_by_role("status")).to_contain_text("on cpu")
    engine = page.get_by_role("region", name="Engine")
    await expect(engine).to_contain_text("llama")
    pages = page.get_by_role("region", name="KV pool").get_by_role("img")
    await expect(pages).to_have_attribute("aria-label", re.compile("free: "))


async def test_a_run_is_shown_with_its_branches_events_and_outcome(server: RunningServer, page: Page) -> None:
    await page.goto(address(server, "#playground"))
    await page.get_by_label("Source").fill(PROGRAM)
    await page.get_by_label("Arguments (JSON)").fill('{"n": 2}')
    await expect(page.get_by_text("It can run.")).to_be_visible()
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("heading", name="Outcome")).to_be_visible()
    await expect(page.get_by_label("What the program printed and told")).to_contain_text("two branches")
    await expect(page.get_by_label("What the program printed and told")).to_contain_text('[looked] {"at":1}')
    await expect(page.get_by_text('{"branches":2}')).to_be_visible()
    timeline = page.get_by_role("img", name=re.compile("3 contexts"))
    await expect(timeline.get_by_text("2 of 1")).to_be_visible()
    await expect(timeline.locator("rect")).to_have_count(2)


async def test_problems_are_told_while_one_types_and_lead_to_their_place(server: RunningServer, page: Page) -> None:
    await page.goto(address(server, "#playground"))
    source = page.get_by_label("Source")
    await source.fill("async def main(request, lm):\n    return request.nam\n")
    await page.get_by_role("button", name=re.compile("^line 2, column")).click()
    await expect(source).to_be_focused()
    await page.keyboard.type("X")
    assert "return Xrequest" in (await source.input_value()) or "request.Xnam" in (await source.input_value())
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("alert").filter(has_text="program")).to_be_visible()


async def test_what_is_written_is_still_there_after_a_reload(server: RunningServer, page: Page) -> None:
    await page.goto(address(server, "#playground"))
    await page.get_by_label("Source").fill("# mine\n")
    await page.reload()
    await expect(page.get_by_label("Source")).to_have_value("# mine\n")


async def test_a_program_of_the_server_can_be_begun_with(server: RunningServer, page: Page) -> None:
    await page.goto(address(server, "#playground"))
    shipped = page.get_by_label("Begin with a program of the server")
    await expect(shipped.locator("option", has_text="best_of_n")).to_have_count(1)
    await shipped.select_option(label=str(await shipped.locator("option", has_text="best_of_n").inner_text()))
    await expect(page.get_by_label("Source")).to_have_value(re.compile("EXTENSION"))


async def test_it_can_be_used_by_keyboard_alone(server: RunningServer, page: Page) -> None:
    await page.goto(address(server))
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    link = page.get_by_role("link", name="Playground")
    while not await link.evaluate("each => each === document.activeElement"):
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    source = page.get_by_label("Source")
    await source.focus()
    await page.keyboard.press("Control+End")
    await page.keyboard.press("Tab")
    assert (await source.input_value()).endswith("    ")
    await page.keyboard.press("Escape")
    await page.keyboard.press("Tab")
    await expect(source).not_to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "view", ["#overview", "#memory", "#tenants", "#prefixes", "#runs", "#tools", "#audit", "#playground"]
)
async def test_it_is_accessible_and_fits_a_phone(
    server: RunningServer, browser: Browser, view: str, scheme: str
) -> None:
    context = await browser.new_context(
        viewport={"width": PHONE["width"], "height": PHONE["height"]},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=True,  # the checker is a script that the page does not know
    )
    page = await context.new_page()
    await page.goto(address(server, view))
    await expect(page.get_by_role("status").first).to_contain_text("on cpu")
    found = await Axe().run(page)
    problems = [f"{one['id']}: {one['nodes'][0]['html']}" for one in found.response["violations"]]
    assert problems == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


async def test_a_server_with_keys_is_asked_with_one(locked: RunningServer, page: Page) -> None:
    await page.goto(address(locked))
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label(re.compile("key")).fill("a wrong one")
    await dialog.get_by_role("button", name="Continue").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("not valid")
    await dialog.get_by_label(re.compile("key")).fill(KEY)
    await dialog.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("status").first).to_contain_text("on cpu")


async def test_a_tenant_is_made_limited_and_given_a_key_that_works(administered: RunningServer, page: Page) -> None:
    async def give(label: str, key: str) -> None:
        await page.get_by_role("dialog").get_by_label(label).fill(key)
        await page.get_by_role("button", name="Continue").click()

    await page.goto(address(administered, "#tenants"))
    await give("Administrator's key", ADMIN_KEY)
    tenants = page.get_by_role("region", name="Tenants", exact=True)
    await tenants.get_by_label("Name").fill("Lyon")
    await tenants.get_by_role("button", name="Add a tenant").click()
    await page.get_by_label("Requests per minute").fill("2")
    await page.get_by_role("button", name="Save limits").click()
    await expect(tenants.get_by_role("row", name=re.compile("Lyon.* 2 "))).to_be_visible()
    await page.get_by_label("Weight").fill("-3")
    await page.get_by_role("button", name="Save limits").click()
    await page.get_by_label("Scopes (empty: all)").fill("nonsense")
    await page.get_by_role("button", name="Make a key").click()
    await expect(page.get_by_role("alert").filter(has_text="nonsense")).to_be_visible()
    await page.get_by_label("Scopes (empty: all)").fill("")
    await page.get_by_role("button", name="Make a key").click()
    shown = page.get_by_role("status").filter(has_text="Copy it now")
    value = await shown.get_by_role("code").inner_text()
    await page.get_by_role("link", name="Audit").click()
    await expect(page.get_by_role("region", name="Audit", exact=True)).to_contain_text("project.created")

    await page.get_by_role("link", name="Playground").click()
    await give("API key", value)
    await page.get_by_label("Source").fill(PROGRAM)
    for _ in range(3):
        await page.get_by_role("button", name="Run").click()
        await expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    await expect(page.get_by_role("alert").filter(has_text=re.compile("requests", re.IGNORECASE))).to_be_visible()
    await page.get_by_role("link", name="Tenants").click()
    refused = page.get_by_role("region", name="Refused lately")
    await expect(refused.get_by_role("row", name=re.compile("requests"))).to_be_visible()


async def test_the_pool_is_shown_page_by_page_by_mouse_and_keyboard(server: RunningServer, page: Page) -> None:
    async with connect(server) as client:
        body = {
            "messages": [{"role": "user", "content": "Keep this. " * 20}],
            "max_tokens": 4,
            "retention": {"ttl_s": 600, "value": 0.9},
        }
        kept = (await client.post("/v1/chat/completions", json=body)).json()["retention"]
        assert kept["status"] == "kept"
    await page.goto(address(server, "#memory"))
    pages = page.get_by_role("region", name="Pages").get_by_role("img")
    await expect(pages).to_have_attribute("aria-label", re.compile(r"without a tenant: [1-9]\d* pages"))
    assert int(await pages.evaluate(NUM_COLOURS)) >= 3
    row = page.get_by_role("region", name="Whoever holds most first").get_by_role("row", name=re.compile("kept for a"))
    await expect(row.first).to_contain_text("0.90")
    slider = page.get_by_label("Page", exact=True)
    await slider.focus()
    await page.keyboard.press("Home")
    await expect(page.locator("output")).to_contain_text(re.compile("device, page 0 · .*"))
    await page.keyboard.press("End")
    await expect(page.locator("output")).to_contain_text(re.compile(r"device, page [1-9]\d* · .*"))
    await page.get_by_label("Colour by").select_option(label="what leases are worth")
    await expect(page.get_by_text("palest without a lease")).to_be_visible()
    payer = page.get_by_role("button", name=re.compile("without a tenant"))
    await payer.focus()
    await page.keyboard.press("Enter")
    await expect(payer).to_have_attribute("aria-pressed", "true")
    await expect(payer).to_be_focused()
    await pages.click(position={"x": 2, "y": 2})
    await expect(page.locator("output")).to_contain_text("device, page 0")


async def test_a_tool_is_shown_and_tried(server: RunningServer, page: Page) -> None:
    async with connect(server) as client:
        made = await client.post("/v1/tools", json=SCRIPT_TOOL)
        assert made.status_code == 200, made.text
    await page.goto(address(server, "#tools"))
    row = page.get_by_role("row", name=re.compile("doubler"))
    await row.get_by_role("button", name="Try").click()
    await page.get_by_label("Arguments (JSON)").fill('{"n": 21}')
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_label("What the tool answered")).to_contain_text("42")


async def test_a_prefix_is_shown_evicted_and_deleted(server: RunningServer, page: Page) -> None:
    async with connect(server) as client:
        name = f"shown.{uuid.uuid4().hex}"
        made = await client.post("/v1/prefixes", json={"name": name, "input": "some words to keep"})
        assert made.status_code == 200, made.text
    await page.goto(address(server, "#prefixes"))
    row = page.get_by_role("row", name=re.compile(name))
    await row.get_by_role("button", name="Evict").click()
    await expect(row).to_contain_text("cold")
    await row.get_by_role("button", name="Delete").click()
    await expect(row).to_have_count(0)


async def test_the_page_lets_nothing_from_elsewhere_in(server: RunningServer, locked: RunningServer) -> None:
    async with connect(locked) as client:
        page = await client.get("/console")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        again = await client.get("/console", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert (await client.get("/console/nothing.js")).status_code == 401
        assert (await client.get("/v1/admin/overview")).status_code == 401
    async with connect(server) as client:
        assert (await client.get("/console/../settings.py")).status_code == 404
        assert (await client.get("/console/nothing.js")).status_code == 404
