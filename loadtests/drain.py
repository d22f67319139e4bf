"""A client in a process of its own that reads every token: `python -m loadtests.drain ENDPOINT`. Prints JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence

from engine.client import EventStream
from engine.connection import EngineConnection
from engine.request import GenerateRequest
from engine.sampling.params import SamplingParams
from loadtests.workload import random_ids


async def drain(endpoint: str, width: int, num_prompt: int, num_output: int) -> dict[str, float]:
    """Submits `width` requests at once and reads them to their ends.

    Returns:
        num_tokens: Read.
        num_events: In how many events they came.
        cpu_s: Processor time of this process from submission to end.
    """
    connection = EngineConnection(endpoint)
    await connection.connect(30.0)
    rng = random.Random(0)
    vocab_size = connection.info.vocab_size
    sampling = SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True)
    prompts = [[token % vocab_size for token in random_ids(rng, num_prompt)] for _ in range(width)]
    before = time.process_time()
    requests = [
        GenerateRequest(request_id=f"drain-{index}", prompt_ids=prompt, sampling=sampling)
        for index, prompt in enumerate(prompts)
    ]
    streams = await asyncio.gather(*(connection.submit(request) for request in requests))
    counts = await asyncio.gather(*(_read(stream) for stream in streams))
    cpu_s = time.process_time() - before
    await connection.close()
    tokens, events = (sum(column) for column in zip(*counts, strict=True))
    return {"num_tokens": tokens, "num_events": events, "cpu_s": cpu_s}


async def _read(stream: EventStream) -> tuple[int, int]:
    tokens = events = 0
    async for event in stream:
        tokens += len(event.token_ids)
        events += 1
    return tokens, events


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.drain", description="Read streams of an engine process.")
    parser.add_argument("endpoint", help="ZeroMQ address")
    parser.add_argument("--width", type=int, default=1, help="requests at once")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each")
    parser.add_argument("--output", type=int, default=256, help="tokens of each")
    options = parser.parse_args(argv)
    print(json.dumps(asyncio.run(drain(options.endpoint, options.width, options.prompt, options.output))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
