"""What each route answers with, for the API's description: one table, as routes make their answers themselves."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import TypedDictSchema

from gateway.schemas import (
    answers,
    batch_answers,
    console_answers,
    embedding_answers,
    extension_answers,
    kept_answers,
    prefix_answers,
    run_answers,
    tools_answers,
)
from gateway.schemas.admin_answers import ADMIN_ANSWERS

ANSWERS: dict[str, Any] = {
    **ADMIN_ANSWERS,
    "POST /v1/chat/completions": answers.ChatCompletion,
    "POST /v1/chat/completions/render": answers.RenderedChat,
    "POST /v1/completions": answers.TextCompletion,
    "POST /v1/embeddings": embedding_answers.EmbeddingList,
    "POST /score": embedding_answers.ScoreList,
    "POST /v1/score": embedding_answers.ScoreList,
    "POST /rerank": embedding_answers.Ranking,
    "POST /v1/rerank": embedding_answers.Ranking,
    "POST /v2/rerank": embedding_answers.Ranking,
    "POST /tokenize": answers.Tokens,
    "POST /v1/tokenize": answers.Tokens,
    "POST /detokenize": answers.Detokenized,
    "POST /v1/detokenize": answers.Detokenized,
    "GET /v1/models": answers.ModelList,
    "GET /v1/models/{model_id}": answers.Model,
    "GET /": answers.Places,
    "GET /health": answers.State,
    "GET /ping": answers.State,
    "GET /ready": answers.State,
    "GET /version": answers.Version,
    "POST /v1/responses": kept_answers.ModelResponse,
    "POST /v1/responses/input_tokens": kept_answers.InputTokens,
    "GET /v1/responses/{response_id}": kept_answers.ModelResponse,
    "DELETE /v1/responses/{response_id}": kept_answers.DeletedResponse,
    "POST /v1/responses/{response_id}/cancel": kept_answers.ModelResponse,
    "GET /v1/responses/{response_id}/input_items": kept_answers.ItemList,
    "POST /v1/conversations": kept_answers.Conversation,
    "GET /v1/conversations/{conversation_id}": kept_answers.Conversation,
    "POST /v1/conversations/{conversation_id}": kept_answers.Conversation,
    "DELETE /v1/conversations/{conversation_id}": kept_answers.DeletedConversation,
    "POST /v1/conversations/{conversation_id}/items": kept_answers.ItemList,
    "GET /v1/conversations/{conversation_id}/items": kept_answers.ItemList,
    "GET /v1/conversations/{conversation_id}/items/{item_id}": kept_answers.AnyItem,
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": kept_answers.Conversation,
    "POST /v1/files": batch_answers.FileObject,
    "GET /v1/files": batch_answers.FileList,
    "GET /v1/files/{file_id}": batch_answers.FileObject,
    "DELETE /v1/files/{file_id}": batch_answers.DeletedFile,
    "POST /v1/extensions": extension_answers.ExtensionObject,
    "POST /v1/extensions/check": extension_answers.ExtensionCheck,
    "GET /v1/extensions": extension_answers.ExtensionList,
    "GET /v1/extensions/{extension_id}": extension_answers.ExtensionObject,
    "DELETE /v1/extensions/{extension_id}": extension_answers.DeletedExtension,
    "POST /v1/runs": run_answers.RunObject,
    "GET /v1/runs": run_answers.RunList,
    "GET /v1/runs/{run_id}": run_answers.RunObject,
    "DELETE /v1/runs/{run_id}": run_answers.DeletedRun,
    "POST /v1/runs/{run_id}/input": run_answers.RunInput,
    "POST /v1/runs/{run_id}/cancel": run_answers.RunObject,
    "POST /v1/tools": tools_answers.ToolObject,
    "GET /v1/tools": tools_answers.ToolList,
    "GET /v1/tools/{tool_id}": tools_answers.ToolObject,
    "DELETE /v1/tools/{tool_id}": tools_answers.DeletedTool,
    "POST /v1/tools/{tool_id}/test": tools_answers.ToolTest,
    "POST /v1/prefixes": prefix_answers.PrefixObject,
    "GET /v1/prefixes": prefix_answers.PrefixList,
    "GET /v1/prefixes/{prefix_id}": prefix_answers.PrefixObject,
    "POST /v1/prefixes/{prefix_id}": prefix_answers.PrefixObject,
    "PATCH /v1/prefixes/{prefix_id}": prefix_answers.PrefixObject,
    "DELETE /v1/prefixes/{prefix_id}": prefix_answers.DeletedPrefix,
    "POST /v1/prefixes/{prefix_id}/warm": prefix_answers.PrefixObject,
    "POST /v1/prefixes/{prefix_id}/evict": prefix_answers.PrefixObject,
    "GET /v1/admin/overview": console_answers.Overview,
    "GET /v1/admin/kv": console_answers.KVMapNow,
    "POST /v1/batches": batch_answers.BatchObject,
    "GET /v1/batches": batch_answers.BatchList,
    "GET /v1/batches/{batch_id}": batch_answers.BatchObject,
    "POST /v1/batches/{batch_id}/cancel": batch_answers.BatchObject,
}
"""The type of every answer of status 200 that is JSON, by method and path."""

EVENTS: dict[str, Any] = {
    "POST /v1/chat/completions": answers.ChatCompletionChunk,
    "POST /v1/completions": answers.TextCompletionChunk,
    "POST /v1/responses": kept_answers.ResponseEvent,
    "GET /v1/responses/{response_id}": kept_answers.ResponseEvent,
    "POST /v1/runs": run_answers.RunEvent,
    "GET /v1/runs/{run_id}/events": run_answers.RunEvent,
}
"""What the events are where an answer can be a stream."""


_UNMARKED = (kept_answers.ResponseEvent.__name__, run_answers.RunEvent.__name__)
"""Events of streams that end without [DONE]."""


class _AnswerSchemas(GenerateJsonSchema):
    """Answers have the keys that are told and no others, unless their type says so."""

    def typed_dict_schema(self, schema: TypedDictSchema) -> JsonSchemaValue:
        told = super().typed_dict_schema(schema)
        if schema.get("config", {}).get("extra_fields_behavior") != "allow":
            told["additionalProperties"] = False
        return told

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def describe_answers(description: dict[str, Any], ref_template: str) -> dict[str, Any]:
    """Adds to each operation what it answers with.

    Args:
        description: The whole; changed in place.
        ref_template: How components are referred to.

    Returns:
        The components that are referred to, by name.
    """
    kinds = {id(kind): kind for kind in (*ANSWERS.values(), *EVENTS.values())}.values()
    adapters = [(kind, "serialization", TypeAdapter(kind)) for kind in kinds]
    told, shared = TypeAdapter.json_schemas(
        [(id(kind), mode, adapter) for kind, mode, adapter in adapters],  # type: ignore[misc]
        ref_template=ref_template,
        schema_generator=_AnswerSchemas,
    )
    for path, operations in description["paths"].items():
        for verb, operation in operations.items():
            name = f"{verb.upper()} {path}"
            content = operation["responses"]["200"]["content"]
            if name in ANSWERS:
                content["application/json"] = {"schema": told[id(ANSWERS[name]), "serialization"]}
            if name in EVENTS:
                content["text/event-stream"] = _events(
                    told[id(EVENTS[name]), "serialization"]["$ref"], "" if name not in ANSWERS else "With `stream`: s"
                )
    components: dict[str, Any] = shared["$defs"]
    return components


def _events(ref: str, beginning: str) -> dict[str, Any]:
    name = ref.rpartition("/")[2]
    ending = "" if name in _UNMARKED else " The last one is [DONE]."
    what = f"{beginning or 'S'}erver-sent events, each a {name} or an error as JSON.{ending}"
    fields = {name: {"type": "string"} for name in ("event", "data")}
    return {"schema": {"type": "object", "description": what, "properties": fields, "required": ["data"]}}
