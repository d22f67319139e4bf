"""A token history that can be continued."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from engine.client import EngineClient
from engine.errors import InvalidRequest
from engine.request import GenerateRequest
from engine.text.model import TextModel
from extensions.generation import Generation
from extensions.output import GenerateOptions


class Context:
    """One token history. It does not change when it generates: every generation starts from the same ids.

    Attributes:
        token_ids: The history.
        account: Opaque label that the engine's KV meter charges.
        salt: Prefix pages are shared only among contexts of the same salt.
    """

    def __init__(
        self, engine: EngineClient, text: TextModel, token_ids: Sequence[int], *, account: str, salt: str
    ) -> None:
        self._engine = engine
        self._text = text
        self.token_ids = list(token_ids)
        self.account = account
        self.salt = salt

    async def generate(self, options: GenerateOptions) -> Generation:
        """Hands the work to the engine and returns once it is accepted; every refusal is raised here.

        Use the result as a context manager, so that its pages are freed however the caller leaves:

            async with await context.generate(options) as generation:
                async for step in generation:
                    ...

        Raises:
            InvalidRequest: It can never be served (`ContextTooLong` if it does not fit, `UnknownAdapter`).
            QueueFull: Too many requests wait already.
            EngineStopped: No engine is there.
        """
        if "" in options.stop:
            raise InvalidRequest("stop must not contain an empty string", "stop")
        request = GenerateRequest(
            request_id=uuid.uuid4().hex,
            prompt_ids=self.token_ids,
            sampling=options.sampling,
            n=options.n,
            account=self.account,
            salt=self.salt,
            priority=options.priority,
            prompt_logprobs=options.prompt_logprobs,
            constraint=options.constraint,
            program=options.program,
            adapter=options.adapter,
            drafter=options.drafter,
        )
        stream = await self._engine.submit(request)
        return Generation(stream, self.token_ids, options, self._text.tokenizer)
