"""Events of a detached run, by whichever worker: those after a number, then those to come, up to its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from gateway.errors import NotFound, NotReady
from gateway.runs.events import DROPPED, ENDS, EventHead, framed, framed_error, framed_event, read_head, run_body
from gateway.runs.making import GOES_ON
from gateway.services import Services
from gateway.state.run_store import RunRecord

_TERMINAL = frozenset(ENDS.values())


def not_found(run_id: str) -> NotFound:
    """There is no such run, for this caller."""
    return NotFound(f"Run with id '{run_id[:200]}' not found.", "run_id")


async def read_run(services: Services, run_id: str, owner: str) -> RunRecord:
    """A run of the caller's.

    Raises:
        NotFound: There is none.
        StoreUnavailable: There is no store, or it does not answer.
    """
    runs = services.detached_runs
    runs.watch()
    record = await runs.store.read(run_id, owner)
    if record is None:
        raise not_found(run_id)
    return record


async def follow(services: Services, run_id: str, owner: str, after: int) -> AsyncGenerator[bytes, None]:
    """Framed events with numbers above `after`; ends with the last event of the run, or when it is deleted.

    In a worker that is draining it ends with an error once the run is not worked on there: the reader is to come back,
    and whichever worker it reaches then goes on behind the last number.
    """
    last = after
    try:
        record = await read_run(services, run_id, owner)
        if record.is_over and after >= record.last:
            return
        async for events in services.detached_runs.store.events(run_id):
            for data in events:
                head = read_head(data)
                # What its maker was not sure to have stored may be there twice.
                if head.sequence_number <= last:
                    continue
                if head.sequence_number > last + 1:
                    yield _dropped(last, head)
                last = head.sequence_number
                if head.type in _TERMINAL:
                    record = await read_run(services, run_id, owner)
                    yield framed_event(head.type, last, run=run_body(record))
                    return
                yield framed(data, head)
            # Asked first: a run that ends here afterwards is seen to be over.
            has_left = services.detached_runs.has_left(run_id)
            if has_left or not events:
                record = await read_run(services, run_id, owner)
                if record.is_over and record.last <= last:
                    return
                if has_left and not record.is_over:
                    raise NotReady(GOES_ON)
    except Exception as error:
        yield framed_error(services.to_reply(error).body["error"])


def _dropped(last: int, head: EventHead) -> bytes:
    """Events that were too many: their numbers are taken by the one that says so."""
    return framed_event(DROPPED, head.sequence_number - 1, count=head.sequence_number - 1 - last)
