"""An engine process that computes nothing: every sequence repeats a text, all of them one token a step.

    python -m loadtests.scripted_engine ENDPOINT MODEL STEP_MS

It speaks the engine's protocol through the real `EngineServer`, so that a gateway in front of it does all of its work,
and it costs so little that the gateway is what is measured.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import cast

from engine.constraints.constraint import Constraint
from engine.errors import InvalidRequest
from engine.kv.overview import FREE, KVMap, PageRuns
from engine.leases.lease import LeaseRevoked
from engine.loop import EngineLoop
from engine.request import ConstraintSpec, EngineInfo, FinishReason, GenerateRequest, GenerationDefaults, TokenEvent
from engine.server import EngineServer, bound_socket
from engine.stats import AccountCharge, EngineStats
from engine.text.model import TextModel

TEXT = (
    "The quick brown fox jumps over the lazy dog, and then — as ever — it goes home. Numbers such as 3.14159 and "
    "lines of code follow:\n\n    def area(radius: float) -> float:\n        return 3.14159 * radius**2\n\n"
    "Größe, naïve, 日本語 and 🙂 take several tokens for one character now and then.\n"
)
"""What every sequence says: mostly English, with code and characters of several tokens."""


class _Sequence:
    """One sequence and how many of its tokens were given."""

    __slots__ = ("index", "num_given", "request")

    def __init__(self, request: GenerateRequest, index: int) -> None:
        self.request = request
        self.index = index
        self.num_given = 0


class ScriptedLoop:
    """Stands in for `engine.loop.EngineLoop`.

    Args:
        text: Whose tokens to give.
        step_s: Seconds from the start of one step to the start of the next.
    """

    def __init__(self, text: TextModel, step_s: float) -> None:
        self._ids = text.tokenizer.encode(TEXT, add_special=False)
        self._step_s = step_s
        self._due_s = 0.0
        self._running: dict[tuple[str, int], _Sequence] = {}
        self.stats = EngineStats()
        self.info = EngineInfo(
            epoch=str(os.getpid()),
            model_path=str(text.path),
            architecture="scripted",
            fingerprint="0" * 16,
            vocab_size=text.tokenizer.vocab_size,
            hidden_size=8,
            eos_token_ids=(),
            max_model_len=1 << 20,
            page_size=16,
            num_pages=1 << 20,
            page_bytes=1,
            device="cpu",
            step="scripted",
            dtype="float32",
            kv_dtype="float32",
            attention_backend="scripted",
            defaults=GenerationDefaults(),
            num_parameters=0,
            load_s=0.0,
        )

    @property
    def has_work(self) -> bool:
        """True while a sequence runs."""
        return bool(self._running)

    @property
    def wants_tending(self) -> bool:
        """Nothing here happens by time alone."""
        return False

    @property
    def charges(self) -> list[AccountCharge]:
        """Nobody owes anything."""
        return []

    def take_revoked(self) -> list[LeaseRevoked]:
        """Nobody has a lease."""
        return []

    def compile(self, constraint: ConstraintSpec) -> Future[Constraint]:
        """Nothing here holds anybody to a form."""
        raise InvalidRequest("this engine cannot constrain its output", constraint.param)

    def describe_kv(self) -> KVMap:
        """Nobody holds anything."""
        none = PageRuns(num_pages=0, cell_pages=1, runs=[])
        free = PageRuns(num_pages=self.info.num_pages, cell_pages=1, runs=[self.info.num_pages, FREE, 0])
        return KVMap(device=free, host=none, holders=[], num_holders=0)

    def submit(self, request: GenerateRequest, prepared: object = None) -> None:
        """Takes a request in, free of any constraint."""
        assert prepared is None
        for index in range(request.n):
            self._running[request.request_id, index] = _Sequence(request, index)

    def abort(self, request_id: str) -> None:
        """Ends a request."""
        for key in [key for key in self._running if key[0] == request_id]:
            del self._running[key]

    def stop(self, request_id: str, index: int) -> None:
        """Ends one sequence."""
        self._running.pop((request_id, index), None)

    def step(self) -> list[TokenEvent]:
        """One token for every sequence, at the set pace."""
        wait_s = self._due_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        self._due_s = max(self._due_s + self._step_s, time.monotonic())
        return [self._next(sequence) for sequence in tuple(self._running.values())]

    def _next(self, sequence: _Sequence) -> TokenEvent:
        request = sequence.request
        token_id = self._ids[sequence.num_given % len(self._ids)]
        is_first = sequence.num_given == 0
        sequence.num_given += 1
        is_last = sequence.num_given >= request.sampling.max_tokens
        if is_last:
            self.stop(request.request_id, sequence.index)
        return TokenEvent(
            request_id=request.request_id,
            index=sequence.index,
            token_ids=[token_id],
            finish_reason=FinishReason.LENGTH if is_last else None,
            num_cached_tokens=0 if is_first else None,
        )


def main() -> None:
    """Serves until standard input ends."""
    endpoint, model, step_ms = sys.argv[1:]
    loop = ScriptedLoop(TextModel.load(Path(model)), float(step_ms) / 1000)
    with bound_socket(endpoint) as socket:
        EngineServer(cast("EngineLoop", loop), socket, sys.stdin.fileno()).run()


if __name__ == "__main__":
    main()
