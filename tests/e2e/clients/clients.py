"""The columns of the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """One client library.

    Attributes:
        name: Of its requirements and in test ids.
        title: For people.
        program: Module of its checks in `programs`, or a script of node.
        snippet: Name of its first lines in docs/clients.md.
    """

    name: str
    title: str
    program: str
    snippet: str

    @property
    def is_node(self) -> bool:
        """Its program is JavaScript."""
        return self.program.endswith(".mjs")

    @property
    def requirements(self) -> Path:
        """What is installed for it, every version pinned."""
        return HERE / "requirements" / f"{self.name}.txt"

    @property
    def node_packages(self) -> Path:
        """What npm installs for it."""
        return HERE / "requirements" / self.name


CLIENTS = {
    client.name: client
    for client in (
        Client(name="openai1", title="openai-python 1", program="with_openai", snippet="openai"),
        Client(name="openai2", title="openai-python 2", program="with_openai", snippet="openai"),
        Client(name="openai3", title="openai-python 3", program="with_openai", snippet="openai"),
        Client(name="node", title="openai-node", program="with_node.mjs", snippet="node"),
        Client(name="langchain", title="LangChain", program="with_langchain", snippet="langchain"),
        Client(name="llamaindex", title="LlamaIndex", program="with_llamaindex", snippet="llamaindex"),
        Client(name="pydanticai", title="Pydantic AI", program="with_pydanticai", snippet="pydanticai"),
        Client(name="litellm", title="LiteLLM", program="with_litellm", snippet="litellm"),
        Client(name="instructor", title="Instructor", program="with_instructor", snippet="instructor"),
        Client(name="agents", title="OpenAI Agents SDK", program="with_agents", snippet="agents"),
    )
}
"""By name, in the table's order."""
