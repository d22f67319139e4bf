"""Messages between programs: heard by all, or taken by one, within bounds, through whichever worker they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from gateway.state.bells import Bells
from gateway.state.run_mail import MailBounds, OwnerMail, ProgramMail

BOUNDS = MailBounds(messages=4, channel_bytes=100, channels=3, bytes=150, ttl_s=600)


class Office:
    """The mail of one worker."""

    def __init__(self, url: str) -> None:
        self.bells = Bells(url)
        self.mail = ProgramMail(url, self.bells, BOUNDS)

    async def aclose(self) -> None:
        assert self.bells.num_listening == 0
        await self.mail.aclose()
        await self.bells.aclose()


@pytest.fixture
async def offices(redis_url: str) -> AsyncIterator[tuple[Office, Office]]:
    """Two workers."""
    pair = Office(redis_url), Office(redis_url)
    yield pair
    for office in pair:
        await office.aclose()


@pytest.fixture
def here(offices: tuple[Office, Office]) -> OwnerMail:
    """Ann's, in one worker."""
    return offices[0].mail.of("ann")


@pytest.fixture
def there(offices: tuple[Office, Office]) -> OwnerMail:
    """Ann's, in the other."""
    return offices[1].mail.of("ann")


async def test_all_subscribers_hear_what_is_published_after_they_began(here: OwnerMail, there: OwnerMail) -> None:
    await here.publish("news", b"0")
    places = [await here.newest("news"), await there.newest("news")]
    waiting = [
        asyncio.create_task(mail.hear("news", place, 60)) for mail, place in zip((here, there), places, strict=True)
    ]
    await asyncio.sleep(0.05)
    await there.publish("news", b"1")
    heard = await asyncio.gather(*waiting)
    assert [one and (list(one.messages), one.missed) for one in heard] == [([b"1"], 0)] * 2
    await here.publish("news", b"2")
    again = heard[0] and await here.hear("news", heard[0].place, 1)
    assert again
    assert list(again.messages) == [b"2"]


async def test_a_slow_subscriber_is_told_how_much_it_missed(here: OwnerMail) -> None:
    place = await here.newest("news")
    for number in range(10):
        await here.publish("news", b"%d" % number)
    heard = await here.hear("news", place, 1)
    assert heard
    assert (list(heard.messages), heard.missed) == ([b"6", b"7", b"8", b"9"], 6)


async def test_large_messages_push_out_older_ones(here: OwnerMail) -> None:
    place = await here.newest("news")
    for letter in b"abc":
        await here.publish("news", bytes([letter]) * 45)
    heard = await here.hear("news", place, 1)
    assert heard
    assert ([one[:1] for one in heard.messages], heard.missed) == ([b"b", b"c"], 1)


async def test_a_message_is_pulled_once_in_order(here: OwnerMail, there: OwnerMail) -> None:
    for number in range(4):
        await here.push("work", b"%d" % number, 0)
    pulled = await asyncio.gather(*(mail.pull("work", 0) for mail in (here, there, here, there)))
    assert sorted(one or b"" for one in pulled) == [b"0", b"1", b"2", b"3"]
    assert await here.pull("work", 0) is None


async def test_who_pulls_first_waits_for_who_pushes_later(here: OwnerMail, there: OwnerMail) -> None:
    pulling = asyncio.create_task(there.pull("work", None))
    await asyncio.sleep(0.05)
    assert not pulling.done()
    await here.push("work", b"x", 0)
    assert await pulling == b"x"


async def test_a_full_queue_is_waited_for_and_then_refused(here: OwnerMail, there: OwnerMail) -> None:
    for number in range(4):
        await here.push("work", b"%d" % number, 0)
    with pytest.raises(MemoryError, match=r"limit_exceeded: queue 'work' is full: 4 messages"):
        await here.push("work", b"4", 0.05)
    pushing = asyncio.create_task(here.push("work", b"4", 60))
    await asyncio.sleep(0.05)
    assert await there.pull("work", 0) == b"0"
    await pushing
    assert [await there.pull("work", 0) for _ in range(5)] == [b"1", b"2", b"3", b"4", None]


async def test_an_owner_has_so_many_channels_and_bytes(here: OwnerMail, offices: tuple[Office, Office]) -> None:
    for name in "abc":
        await here.push(name, b"x", 0)
    with pytest.raises(MemoryError, match="at most 3 topics and queues"):
        await here.publish("d", b"x")
    await here.push("a", b"x" * 90, 0)
    with pytest.raises(MemoryError, match="at most 150 bytes"):
        await here.push("b", b"x" * 90, 0)
    await offices[0].mail.of("bob").push("b", b"x" * 90, 0)
    assert [await here.pull("a", 0), len(await here.pull("a", 0) or b"")] == [b"x", 90]
    await here.publish("d", b"x")


@pytest.mark.parametrize(("one", "other"), [("ann", "bob"), ("a:b", "a"), ("", "0:")])
async def test_owners_do_not_hear_each_other(offices: tuple[Office, Office], one: str, other: str) -> None:
    mine, theirs = offices[0].mail.of(one), offices[0].mail.of(other)
    place = await theirs.newest("b:news")
    await mine.publish("b:news", b"secret")
    await mine.push("b:work", b"secret", 0)
    for name in ("news", "b:news"):
        assert await theirs.hear(name, place, 0) is None
    for name in ("work", "b:work"):
        assert await theirs.pull(name, 0) is None
    assert await mine.pull("b:work", 0) == b"secret"


async def test_a_message_that_nobody_is_there_to_take_any_more_goes_back(
    here: OwnerMail, monkeypatch: pytest.MonkeyPatch, offices: tuple[Office, Office]
) -> None:
    script = offices[0].mail.pulling
    begun = asyncio.Event()

    async def slow(**given: object) -> object:
        found = await script(**given)  # type: ignore[arg-type]
        begun.set()
        await asyncio.sleep(0.05)
        return found

    await here.push("work", b"1", 0)
    await here.push("work", b"2", 0)
    monkeypatch.setattr(offices[0].mail, "pulling", slow)
    pulling = asyncio.create_task(here.pull("work", None))
    await begun.wait()
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulling
    monkeypatch.undo()
    assert [await here.pull("work", 0) for _ in range(3)] == [b"1", b"2", None]


async def test_nothing_is_counted_for_what_was_taken(here: OwnerMail, redis_url: str) -> None:
    for round_ in range(3):
        await here.push("work", b"x" * 90, 0)
        assert await here.pull("work", 0), round_
    with Redis.from_url(redis_url) as redis:
        assert redis.get("{wye}:pms:ann") == b"0"
        assert redis.zcard("{wye}:pmx:ann") == 0


async def test_who_waits_hears_of_messages_after_redis_was_away(
    offices: tuple[Office, Office], here: OwnerMail
) -> None:
    pulling = asyncio.create_task(here.pull("work", 60))
    await asyncio.sleep(0.05)
    await offices[0].mail.redis.client_kill_filter(_type="pubsub", skipme=True)
    await offices[1].mail.of("ann").push("work", b"x", 0)
    assert await pulling == b"x"


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_push_that_is_cancelled_on_its_way_has_sent_the_message_or_says_that_it_has_not(
    here: OwnerMail, there: OwnerMail, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    for n in range(4 if is_full else 0):
        await there.push("work", str(n).encode(), 0)
    send, is_sending, may_send = here._send, asyncio.Event(), asyncio.Event()

    async def slow(kind: str, name: str, message: bytes, op: str) -> bool:
        is_sending.set()
        await may_send.wait()
        return await send(kind, name, message, op)

    monkeypatch.setattr(here, "_send", slow)
    pushing = asyncio.create_task(here.push("work", b"x", None))
    await is_sending.wait()
    pushing.cancel()
    await asyncio.sleep(0)
    may_send.set()
    await asyncio.wait([pushing])
    assert pushing.cancelled() == is_full
    found = [await there.pull("work", 0) for _ in range(5)]
    assert found.count(b"x") == (0 if is_full else 1)


class AnswersLost:
    """A command that is done, and whose first answer never arrives."""

    def __init__(self, command: Any) -> None:
        self.command = command
        self.num_asked = 0

    async def __call__(self, **fields: Any) -> Any:
        self.num_asked += 1
        answer = await self.command(**fields)
        if self.num_asked == 1:
            raise ConnectionError("the answer is lost")
        return answer


async def test_a_message_is_sent_once_where_the_answer_was_lost(
    offices: tuple[Office, Office], here: OwnerMail, there: OwnerMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = AnswersLost(offices[0].mail.sending)
    monkeypatch.setattr(offices[0].mail, "sending", sending)
    await here.push("work", b"x", None)
    assert sending.num_asked == 2
    assert [await there.pull("work", 0) for _ in range(2)] == [b"x", None]


async def test_a_message_is_not_lost_with_the_answer_that_brought_it(
    offices: tuple[Office, Office], here: OwnerMail, there: OwnerMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    await there.push("work", b"x", 0)
    pulling = AnswersLost(offices[0].mail.pulling)
    monkeypatch.setattr(offices[0].mail, "pulling", pulling)
    assert await here.pull("work", None) == b"x"
    assert pulling.num_asked == 2
    assert await there.pull("work", 0) is None
