"""The short way for sequences of which nothing but tokens is wanted, while they decode.

Most lanes of most steps are such, and a wide step of a fast device leaves the host a few microseconds for each. What is
done here is what `Scheduler` does for every sequence, without the questions whose answers are known.
"""

from __future__ import annotations

from engine.kv.manager import KVManager
from engine.request import TokenEvent
from engine.scheduling.batch import Lane
from engine.sequence import Sequence


def plain_lane(sequence: Sequence, kv: KVManager) -> Lane | None:
    """The lane of a running plain sequence that decodes, with everything noted that a lane changes.

    Returns:
        None, and nothing noted, where it has a prompt to compute, nothing at all, or no page of its own to write to.
    """
    start, in_flight = sequence.num_scheduled, sequence.num_in_flight
    num_tokens = len(sequence.token_ids) + in_flight
    table, row = sequence.table, sequence.row
    assert table is not None
    assert row is not None
    if start + 1 != num_tokens or start >= sequence.num_to_compute or not kv.owns(table, start):
        return None
    samples = num_tokens < sequence.max_total
    sequence.num_scheduled = num_tokens
    sequence.num_in_flight = in_flight + samples
    return Lane(sequence, sequence.runs, start, 1, samples, in_flight > 0, False, row, table.pages[:], ())


def take_plain(sequence: Sequence, lane: Lane, token_id: int) -> TokenEvent | None:
    """Takes in the token that such a lane drew.

    Returns:
        News for its caller; None, and nothing done, if the token ends it, or was not drawn behind its own output.
    """
    token_ids = sequence.token_ids
    if (
        token_id < 0
        or lane.start < sequence.num_prompt
        or token_id in sequence.stop_ids
        or len(token_ids) + 1 >= sequence.max_total
        or not sequence.reported
    ):
        return None
    sequence.num_computed = lane.start + 1
    sequence.num_in_flight -= 1
    token_ids.append(token_id)
    return TokenEvent(
        request_id=sequence.request.request_id,
        index=sequence.index,
        token_ids=[token_id],
        kv_kib_ms=sequence.payer.kib_ms,
    )


def is_plain(sequence: Sequence) -> bool:
    """True if nothing but tokens is wanted of a sequence, and nobody but the device has a say in them.

    A held context makes no difference while every token sees all before it: so decode the programs that let the engine
    generate. It is asked once the sequence has begun on it, for until that ends nobody can edit it.
    """
    request, context = sequence.request, sequence.context
    return (
        (context is None or (not context.edits and context.shape is None))
        and not request.passes
        and request.attention is None
        and sequence.constraint is None
        and (sequence.program is None or sequence.program.is_plain)
        and sequence.drafter is None
        and sequence.group is None
        and sequence.adapter.number < 0
        and not request.stepped
        and request.pooling is None
        and request.prompt_logprobs is None
        and request.sampling.logprobs is None
    )
