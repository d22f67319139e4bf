"""Addresses that the server talks to, and those that it never does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from extensions.tools.box import ToolBox
from extensions.tools.egress import EgressPolicy, Resolver
from extensions.tools.errors import EgressDenied, ToolFailed, ToolInvalid
from extensions.tools.spec import ToolSpec
from tests.extensions.tools.conftest import CALLER
from tests.extensions.tools.service import Service

INSIDE = [
    "127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.1.1", "169.254.169.254", "100.64.0.1",
    "100.100.100.200", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.0.1", "198.18.0.1", "240.0.0.1",
    "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1", "2001:db8::1", "::127.0.0.1",
    "2001:0:7f00:1::1", "fec0::1",
]  # fmt: skip
"""Addresses that are not public, in all their disguises."""

PUBLIC = ["93.184.215.14", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"]


def check(
    policy: EgressPolicy, address: str, *, host: str = "x.example", plain: bool = False, trusted: bool = False
) -> None:
    """Checks an address as a request to a host would."""
    inside = trusted or policy.names(host)
    policy.check(ip_address(address), host, is_plain=plain, inside=inside, local=trusted)


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(EgressDenied):
        check(EgressPolicy(), address)


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_is_allowed_but_not_in_plain_text(address: str) -> None:
    check(EgressPolicy(), address)
    with pytest.raises(EgressDenied, match="https"):
        check(EgressPolicy(), address, plain=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_an_operators_tool_may_be_on_this_machine(address: str) -> None:
    check(EgressPolicy(), address, plain=True, trusted=True)


def test_a_network_inside_is_open_to_the_operators_tools_and_named_hosts_alone() -> None:
    policy = EgressPolicy.read(["tools.corp.example", "*"], ["10.0.0.0/8", "fd00::/8"])
    check(policy, "10.1.2.3", trusted=True, plain=True)
    check(policy, "::ffff:10.1.2.3", trusted=True)
    check(policy, "fd00::7", trusted=True)
    check(policy, "10.1.2.3", host="Tools.corp.example.", plain=True)
    for host in ("x.example", "evil-tools.corp.example", "tools.corp.example.evil"):
        with pytest.raises(EgressDenied):
            check(policy, "10.1.2.3", host=host)
    with pytest.raises(EgressDenied):
        check(policy, "192.168.1.1", trusted=True)


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "100.100.100.200"])
def test_nothing_opens_the_way_to_a_clouds_credentials(address: str) -> None:
    with pytest.raises(EgressDenied):
        check(EgressPolicy.read(["x.example"], ["0.0.0.0/0", "::/0"]), address, trusted=True)


def test_names_below_a_name_are_named_by_a_star() -> None:
    policy = EgressPolicy.read(["*.example.com"], [])
    assert policy.names("api.example.com")
    assert policy.names("a.b.EXAMPLE.com.")
    assert not policy.names("example.com")
    assert not policy.names("badexample.com")
    assert not EgressPolicy.read(["*"], []).names("api.example.com")


@pytest.mark.parametrize(("hosts", "networks"), [(["a b"], []), (["http://x"], []), ([], ["10.0.0.1/8"]), ([], ["x"])])
def test_settings_that_are_no_hosts_or_networks_are_refused(hosts: list[str], networks: list[str]) -> None:
    with pytest.raises(ToolInvalid):
        EgressPolicy.read(hosts, networks)


def resolver(*answers: Sequence[str]) -> tuple[Resolver, list[str]]:
    """Answers one after the other, the last for ever; and the names that were asked for."""
    asked: list[str] = []

    async def find(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    return find, asked


async def ask(tool_box: ToolBox, url: str, *, environ: dict[str, str] | None = None) -> str:
    """Calls a tool at an address."""
    tool = ToolSpec.from_wire({"name": "t", "kind": "http", "http": {"url": url}, "timeout_s": 5}, environ=environ)
    try:
        return (await tool_box.call(tool, {}, operation_id="op", caller=CALLER)).text
    finally:
        await tool_box.aclose()


async def test_a_name_that_means_something_else_a_moment_later_changes_nothing(service: Service) -> None:
    find, asked = resolver(["127.0.0.1"], ["169.254.169.254"])
    port = service.url.rpartition(":")[2]
    assert "headers" in await ask(ToolBox(resolver=find), f"http://localhost:{port}/echo", environ={})
    assert asked == ["localhost"]
    assert service.calls[0][2]["host"] == f"localhost:{port}"


async def test_a_name_with_one_address_inside_is_refused_as_a_whole() -> None:
    find, asked = resolver(["93.184.215.14", "127.0.0.1"])
    with pytest.raises(EgressDenied, match=r"rebind\.example"):
        await ask(ToolBox(resolver=find), "https://rebind.example/")
    assert asked == ["rebind.example"]


async def test_what_a_name_stands_for_inside_is_told_to_operators_alone(caplog: pytest.LogCaptureFixture) -> None:
    find, _ = resolver(["10.9.8.7"])
    detail = "secret.corp is at 10.9.8.7, which is no public address"
    with pytest.raises(EgressDenied) as tenants:
        await ask(ToolBox(resolver=find), "https://secret.corp/")
    with pytest.raises(EgressDenied) as programs:
        await fetched(ToolBox(egress=EgressPolicy.read(["*"], []), resolver=find), "https://secret.corp/")
    for caught in (tenants.value, programs.value):
        assert (str(caught), caught.detail) == ("secret.corp is at an address that is not allowed", detail)
    with pytest.raises(EgressDenied) as operators:
        await ask(ToolBox(resolver=find), "https://secret.corp/", environ={})
    assert "10.9" not in str(operators.value)
    assert "secret.corp" not in str(operators.value)
    assert operators.value.detail == f"{detail} and not in a network of WYE_TOOL_NETWORKS"
    assert [one.getMessage().removeprefix("not reached: ") for one in caplog.records] == [
        detail, detail, operators.value.detail,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1/", "https://[::1]/", "https://0x7f000001/", "https://2130706433/", "https://127.1/",
     "https://[::ffff:7f00:1]/", "https://169.254.169.254/latest", "https://localhost/", "https://0/"],
)  # fmt: skip
async def test_a_tenants_tool_cannot_be_inside_however_it_is_spelled(url: str) -> None:
    with pytest.raises((EgressDenied, ToolFailed)) as caught:
        await ask(ToolBox(), url)
    # What no resolver knows is not found; what one does is refused.
    assert isinstance(caught.value, EgressDenied) or "cannot be found" in str(caught.value)


async def test_addresses_are_tried_in_turn_until_one_answers(service: Service) -> None:
    find, _ = resolver(["127.0.0.254", "127.0.0.1"])
    port = service.url.rpartition(":")[2]
    assert "headers" in await ask(ToolBox(resolver=find), f"http://localhost:{port}/echo", environ={})


@pytest.mark.parametrize("host", ["xn--bcher-kva.example", "LOCALHOST", "Localhost."])
async def test_a_host_is_the_same_however_it_is_written(service: Service, host: str) -> None:
    find, asked = resolver(["127.0.0.1"])
    port = service.url.rpartition(":")[2]
    assert "headers" in await ask(ToolBox(resolver=find), f"http://{host}:{port}/echo", environ={})
    assert asked == [host.lower()]
    box = ToolBox(egress=EgressPolicy.read([host.rstrip(".")], ["127.0.0.0/8"]), resolver=find)
    status, _, _ = await fetched(box, f"http://{host}:{port}/weather/Oslo")
    assert status == 200


async def test_proxies_of_the_environment_see_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxied.append(1)
        writer.close()

    proxied: list[int] = []
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert "headers" in await ask(ToolBox(), f"{service.url}/echo", environ={})
    assert proxied == []


# -- requests of programs' own ---------------------------------------------------------------------------------------


def open_box(*hosts: str, networks: Sequence[str] = ("127.0.0.0/8",)) -> ToolBox:
    """A box whose programs may send requests to hosts."""
    return ToolBox(egress=EgressPolicy.read(hosts, networks))


async def fetched(tool_box: ToolBox, url: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """What a program gets."""
    try:
        reply = await tool_box.fetch(method, url, headers=headers, body=None, timeout_s=5, max_bytes=1000)
        return reply.status, dict(reply.headers), reply.body
    finally:
        await tool_box.aclose()


async def test_a_program_reaches_the_hosts_that_are_named(service: Service) -> None:
    status, headers, body = await fetched(open_box("127.0.0.1"), f"{service.url}/weather/Oslo", Accept="*/*")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert "Oslo" in body


@pytest.mark.parametrize("hosts", [(), ("localhost",), ("*",)])
async def test_a_program_reaches_no_other(service: Service, hosts: tuple[str, ...]) -> None:
    with pytest.raises(EgressDenied):
        await fetched(open_box(*hosts), f"{service.url}/weather/Oslo")
    assert service.calls == []


async def test_a_named_host_inside_needs_its_network_allowed_too(service: Service) -> None:
    with pytest.raises(EgressDenied):
        await fetched(open_box("127.0.0.1", networks=()), f"{service.url}/weather/Oslo")


async def test_a_redirect_is_shown_and_not_followed(service: Service) -> None:
    status, headers, _ = await fetched(open_box("127.0.0.1"), f"{service.url}/redirects")
    assert (status, headers) == (307, {"location": "http://169.254.169.254/latest/meta-data"})


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/", "//127.0.0.1/", "https://u:p@127.0.0.1/", "x"]
)
async def test_only_urls_of_web_servers_are_urls(url: str) -> None:
    with pytest.raises(ToolInvalid) as caught:
        await fetched(open_box("127.0.0.1"), url)
    assert caught.value.param == "url"


@pytest.mark.parametrize("headers", [{"Host": "x"}, {"a b": "c"}, {"x": "a\r\nb: c"}, {"Content-Length": "0"}])
async def test_headers_cannot_say_more_than_headers(headers: dict[str, str]) -> None:
    with pytest.raises(ToolInvalid):
        await fetched(open_box("127.0.0.1"), "http://127.0.0.1/", **headers)
