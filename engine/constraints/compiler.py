"""Compiles constraints beside the engine, once each: bad ones are refused before anything is computed for them."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLMatcher, LLTokenizer

from engine.constraints.checker import GrammarChecker
from engine.constraints.constraint import Constraint
from engine.constraints.grammar import explain, refusal, schemas_within, to_grammar
from engine.constraints.limits import parser_limits
from engine.constraints.sleeping import SleepingConstraint
from engine.constraints.vocabulary import VocabularyBytes, make_tokenizer
from engine.constraints.waking import Waking
from engine.errors import EngineError, InvalidRequest
from engine.request import ConstraintSpec, Opening

log = logging.getLogger(__name__)

VocabularyLoader = Callable[[], VocabularyBytes | None]
"""Reads the vocabulary; None if this model's output cannot be constrained."""

NUM_WORKERS = 2
MAX_CACHED = 64
"""Compiled constraints kept for requests to come."""

NICENESS = 10
"""Steps go before compiling."""

_TRIVIAL = 'start: "x"'


class ConstraintCompiler:
    """Owns the threads and processes that compile. Loading the vocabulary begins at once.

    Args:
        load: Called in a worker.
        num_workers: Constraints compiled at the same time.
        max_cached: Compiled constraints kept.
        make_checker: Makes what tries grammars; one a worker.
    """

    def __init__(
        self,
        load: VocabularyLoader,
        *,
        num_workers: int = NUM_WORKERS,
        max_cached: int = MAX_CACHED,
        make_checker: Callable[[], GrammarChecker] = GrammarChecker,
    ) -> None:
        self._max_cached = max_cached
        self._make_checker = make_checker
        self._lock = threading.Lock()
        self._cache: OrderedDict[ConstraintSpec, Constraint] = OrderedDict()
        self._local = threading.local()
        self._checkers: list[GrammarChecker] = []
        self._num_words = 0
        self._vocabulary: VocabularyBytes | None = None
        self._pool = _start_pool(num_workers)
        self._tokenizer: Future[LLTokenizer | None] = self._pool.submit(self._load, load)

    def wait_loaded(self) -> None:
        """Waits for the vocabulary.

        Raises:
            ModelLoadError: It cannot be read.
        """
        self._tokenizer.result()

    def warm_up(self) -> None:
        """Starts a process that tries grammars, so that the first one does not wait for it; returns at once."""
        self._pool.submit(lambda: self._checker().check(_TRIVIAL))

    def compile(self, spec: ConstraintSpec) -> Future[Constraint]:
        """Starts to compile; the future is done at once for what was compiled before.

        Its result is a constraint at the beginning of the language, to be forked; or it raises `InvalidRequest`, whose
        `param` is the client's field.
        """
        with self._lock:
            found = self._cache.get(spec)
            if found is not None:
                self._cache.move_to_end(spec)
        if found is None:
            return self._pool.submit(self._compile, spec)
        done: Future[Constraint] = Future()
        done.set_result(found)
        return done

    def close(self) -> None:
        """Ends threads and processes; what waits is cancelled. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            checkers = list(self._checkers)
        for checker in checkers:
            checker.close()
        self._pool.shutdown(wait=True)

    def _load(self, load: VocabularyLoader) -> LLTokenizer | None:
        vocabulary = load()
        if vocabulary is None:
            return None
        self._num_words = -(-len(vocabulary.tokens) // 32)
        self._vocabulary = vocabulary
        return make_tokenizer(vocabulary)

    def _compile(self, spec: ConstraintSpec) -> Constraint:
        try:
            return self._make(spec)
        except EngineError:
            raise
        except Exception as error:
            log.exception("a constraint could not be compiled")
            raise EngineError(f"the constraint could not be compiled: {type(error).__name__}") from error

    def _make(self, spec: ConstraintSpec) -> Constraint:
        tokenizer = self._tokenizer.result()
        if tokenizer is None:
            raise InvalidRequest("this model's output cannot be constrained: it has no tokenizer or no end", spec.param)
        try:
            grammar = to_grammar(spec)
        except ValueError as error:
            raise refusal(spec.param, str(error)[:500]) from None
        self._refuse(spec, self._checker().check(grammar))
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        self._refuse(spec, matcher.get_error())
        constraint = Constraint(matcher, self._num_words, spec.param)
        constraint.fork().mask()  # works out what every sequence needs first
        if spec.opening is not None:
            constraint = self._asleep(constraint, spec.opening, tokenizer)
        self._keep(spec, constraint)
        return constraint

    def _refuse(self, spec: ConstraintSpec, fault: str) -> None:
        if not fault:
            return
        # Of several schemas, one that cannot be compiled by itself is the one to blame.
        for param, grammar in schemas_within(spec):
            if own := self._checker().check(grammar):
                raise refusal(param, explain(own))
        raise refusal(spec.param, explain(fault))

    def _asleep(self, constraint: Constraint, opening: Opening, tokenizer: LLTokenizer) -> Constraint:
        assert self._vocabulary is not None
        return SleepingConstraint(constraint, Waking(opening, self._vocabulary, tokenizer.greedy_tokenize))

    def _checker(self) -> GrammarChecker:
        """This thread's own."""
        checker: GrammarChecker | None = getattr(self._local, "checker", None)
        if checker is None:
            checker = self._local.checker = self._make_checker()
            with self._lock:
                self._checkers.append(checker)
        return checker

    def _keep(self, spec: ConstraintSpec, constraint: Constraint) -> None:
        with self._lock:
            self._cache[spec] = constraint
            while len(self._cache) > self._max_cached:
                self._cache.popitem(last=False)


def _start_pool(num_workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_workers, "constraints", initializer=_yield_to_steps)


def _yield_to_steps() -> None:
    with contextlib.suppress(OSError):  # elsewhere than on Linux a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
