"""The request as a script sees it; see `Request` in the stubs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extensions.programs.request import ProgramRequest


class ScriptRequest:
    """What a program answers."""

    def __init__(self, request: ProgramRequest, args: Mapping[str, Any]) -> None:
        self.messages = [dict(message) for message in request.messages]
        prompt = request.prompt
        self.prompt = prompt if isinstance(prompt, str) else list(prompt)
        self.model = request.model
        self.params = dict(request.params)
        self.tools = [dict(tool) for tool in request.tools]
        self.args = dict(args)
        self.stream = request.stream
        self.id = request.id
