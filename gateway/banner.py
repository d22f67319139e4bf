"""What a started server says: where it is, what it serves, and lines to paste."""

from __future__ import annotations

import json
from dataclasses import dataclass

from engine.request import EngineInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Banner:
    """Facts about a started server.

    Attributes:
        version: Ours.
        url: Address without a path.
        model: Name the model is served under.
        num_workers: Gateway processes.
        needs_key: Whether requests need an API key.
        has_tenants: Whether an administrator makes the keys.
        info: The engine.
        took_s: From the command to the first possible answer.
    """

    version: str
    url: str
    model: str
    num_workers: int
    needs_key: bool
    has_tenants: bool
    info: EngineInfo
    took_s: float

    def facts(self) -> list[tuple[str, str]]:
        """Label and value, in order."""
        info = self.info
        pool_mib = info.num_pages * info.page_bytes / 2**20
        workers = f"{self.num_workers} gateway worker" + ("s" if self.num_workers != 1 else "")
        return [
            ("URL", f"{self.url}/v1"),
            ("Model", f"{self.model} ({info.architecture}, {_count(info.num_parameters)} parameters)"),
            ("Engine", f"{info.dtype} on {info.device}, {_step(info)}"),
            (
                "Context",
                f"{info.limit_tokens} tokens; KV pool {info.pool_tokens} tokens in {info.kv_dtype}, {pool_mib:.0f} MiB",
            ),
            ("Access", self._access()),
            ("Ready", f"after {self.took_s:.1f} s (model {info.load_s:.1f} s), {workers}"),
        ]

    def _access(self) -> str:
        if not self.needs_key:
            return "no API key required"
        if self.has_tenants:
            return "API key required; wye tenants create and wye keys create make one"
        return "API key required: one of WYE_API_KEYS or --api-key"

    def curl(self) -> str:
        """A chat request for the shell."""
        body = json.dumps({"model": self.model, "messages": [{"role": "user", "content": "Say hello."}]})
        key = ' -H "Authorization: Bearer $WYE_KEY"' if self.needs_key else ""
        quoted = body.replace("'", "'\\''")
        return f"curl {self.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{quoted}'"

    def python(self) -> str:
        """The same with the OpenAI library."""
        key = 'os.environ["WYE_KEY"]' if self.needs_key else '"none"'
        lines = ["import os"] if self.needs_key else []
        lines += [
            "from openai import OpenAI",
            f'client = OpenAI(base_url="{self.url}/v1", api_key={key})',
            f"answer = client.chat.completions.create(model={json.dumps(self.model)},",
            '    messages=[{"role": "user", "content": "Say hello."}])',
            "print(answer.choices[0].message.content)",
        ]
        return "\n".join(lines)

    def make_key(self) -> str:
        """How an administrator makes a key, for the shell."""
        # By the id, which the command prints: a name may be taken several times.
        return f"export WYE_URL={self.url}\nexport WYE_KEY=$(wye keys create $(wye tenants create my-tenant))"

    def examples(self) -> list[str]:
        """Lines to paste, in order."""
        first = f"# with the administrator's key in WYE_ADMIN_KEY, once:\n{self.make_key()}"
        return [*([first] if self.has_tenants else []), self.curl(), self.python()]

    def text(self) -> str:
        """All of it, plain."""
        width = max(len(label) for label, _ in self.facts())
        facts = [f"  {label:<{width}}  {value}" for label, value in self.facts()]
        head = "\n".join([f"Wye {self.version} is ready", *facts])
        return "\n\n".join([head, *self.examples(), "Ctrl-C stops."])


def _step(info: EngineInfo) -> str:
    kind, _, form = info.step.partition(" ")
    return f"{kind} step ({form or f'attention {info.attention_backend}'})"


def _count(number: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
