"""Subscriptions of programs, over messages whose arrival the test decides."""

import asyncio
from collections import deque

from extensions.programs.doors import Heard, Mail
from extensions.programs.mail import ScriptSubscription


class ToldMail(Mail):
    """Answers those that hear one after the other, each when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._answers: deque[asyncio.Future[Heard | None]] = deque()

    async def publish(self, topic: str, message: bytes) -> None:
        """Nothing here publishes."""
        raise AssertionError

    async def newest(self, topic: str) -> str:
        """The place before the first message."""
        return "0"

    async def hear(self, topic: str, place: str, timeout_s: float | None) -> Heard | None:
        """Waits for the test."""
        self.asked.append(place)
        answer: asyncio.Future[Heard | None] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        return await answer

    async def push(self, queue: str, message: bytes, timeout_s: float | None) -> None:
        """Nothing here pushes."""
        raise AssertionError

    async def pull(self, queue: str, timeout_s: float | None) -> bytes | None:
        """Nothing here pulls."""
        raise AssertionError

    async def answer(self, count: int, first: int = 0) -> None:
        """Lets the first that waits hear messages `first` to `first + count`."""
        for _ in range(5):
            await asyncio.sleep(0)
        messages = [str(number).encode() for number in range(first, first + count)]
        self._answers.popleft().set_result(Heard(messages=messages, place=str(first + count), missed=0))
        for _ in range(5):
            await asyncio.sleep(0)


async def test_of_two_that_wait_the_second_hears_no_message_again() -> None:
    mail = ToldMail()
    news = ScriptSubscription(mail, "news", await mail.newest("news"))
    first, second = asyncio.create_task(news.next()), asyncio.create_task(news.next())
    await mail.answer(1)
    # The second has asked from the same place, and hears the first message with one that came since.
    await mail.answer(2)
    assert await first == 0
    await mail.answer(1, first=1)
    assert await second == 1
    assert mail.asked == ["0", "0", "1"]
    assert news.missed == 0


async def test_of_two_that_wait_the_second_takes_what_the_first_left() -> None:
    mail = ToldMail()
    news = ScriptSubscription(mail, "news", await mail.newest("news"))
    first, second = asyncio.create_task(news.next()), asyncio.create_task(news.next())
    await mail.answer(2)
    await mail.answer(2)
    assert [await first, await second] == [0, 1]
    assert mail.asked == ["0", "0"]
