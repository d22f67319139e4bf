"""Numbers that do not belong where they are, in every numeric field, against the whole server."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.gateway.wire import CHAT, TEXT, chat, error_of, text

INTEGERS = ["n", "max_tokens", "top_k", "min_tokens", "seed", "priority", "prompt_logprobs", "truncate_prompt_tokens"]
FRACTIONS = [
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
]
HUGE = [2**64, -(2**64), 10**400, -(10**400)]


async def post(client: httpx.AsyncClient, path: str, name: str, literal: str) -> httpx.Response:
    """Sends a request in which one field has a literal that `json` may not be able to write."""
    base = chat(max_tokens=2) if path == CHAT else text(max_tokens=2)
    raw = json.dumps({**base, name: "@"}).replace('"@"', literal)
    return await client.post(path, content=raw.encode(), headers={"content-type": "application/json"})


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("name", [*INTEGERS, *FRACTIONS])
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "true", '"1"', "[1]", "{}", '""'])
async def test_g_43_what_is_no_finite_number_is_refused_by_name(
    client: httpx.AsyncClient, path: str, name: str, literal: str
) -> None:
    assert error_of(await post(client, path, name, literal), 400)["param"] == name


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", HUGE)
async def test_integers_beyond_64_bits_are_refused_and_never_an_internal_error(
    client: httpx.AsyncClient, path: str, name: str, value: int
) -> None:
    error = error_of(await post(client, path, name, str(value)), 400)
    # A limit of tokens may be told as what it is: too much for the context.
    assert error["param"] in (name, "messages", "prompt")
    assert len(error["message"]) < 1100


@pytest.mark.parametrize("ids", [[2**70], [-(2**70)], [512], [-1], [True], [1.0], [[5], [2**70]], [[5], [True]]])
async def test_g_50_prompt_ids_that_are_none_are_refused(client: httpx.AsyncClient, ids: object) -> None:
    answer = await client.post(TEXT, json=text(prompt=ids))
    assert error_of(answer, 400)["param"].startswith("prompt")


@pytest.mark.parametrize("key", ["1_0", " 5", "5 ", "+5", "٣", "5.0", "0x5", "", "9" * 5000, "512", "-1"])
async def test_g_44_bias_keys_that_are_no_token_ids_are_refused(client: httpx.AsyncClient, key: str) -> None:
    answer = await client.post(CHAT, json=chat(logit_bias={key: 1}))
    assert error_of(answer, 400)["param"].startswith("logit_bias")


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("ids", [[512], [-1], [2**70], [True], ["5"]])
async def test_g_45_token_ids_that_are_none_are_refused(client: httpx.AsyncClient, name: str, ids: object) -> None:
    answer = await client.post(CHAT, json=chat(**{name: ids}))
    assert error_of(answer, 400)["param"].startswith(name)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 2**32, -(2**32)])
async def test_every_seed_of_64_bits_repeats_itself(client: httpx.AsyncClient, seed: int) -> None:
    body = text(seed=seed, temperature=1.5, ignore_eos=True, max_tokens=12, return_token_ids=True)
    first, second = [(await client.post(TEXT, json=body)).json()["choices"][0]["token_ids"] for _ in range(2)]
    other = (await client.post(TEXT, json={**body, "seed": seed ^ 1})).json()["choices"][0]["token_ids"]
    assert first == second
    assert first != other
