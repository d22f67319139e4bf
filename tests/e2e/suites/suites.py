"""Which tests of other projects are pointed at a running server, and why some of them cannot pass.

Nothing of those projects is in this repository: whoever runs their tests has a checkout of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Tests of one project.

    Attributes:
        directory: Where they run, below the checkout.
        files: What runs, below that.
        plugin: Module of this package that points them at the server.
        config: What pytest reads, below the directory.
        options: For pytest.
        environment: Variables they read; `{url}` and `{port}` are filled in.
        reasons: Parts of what a failed test says, or of its name, and why that is as it should be. The first wins.
    """

    directory: str
    files: tuple[str, ...]
    plugin: str
    config: str = os.devnull
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str]


ANOTHER_MODEL = "Expects what another model says, or how long its prompts are."
NOT_SERVED = "An endpoint that is not served."
CONTRADICTS = "Sends every parameter at once, some without meaning or against each other; each is a 400 that names it."
OWN_FIELDS = "Fields and endpoints of llama.cpp's own."
OWN_WORDS = "Expects the wording of another error message; the status is the same."

SUITES: dict[str, Suite] = {
    "openai-python": Suite(
        directory=".",
        files=(
            "tests/api_resources/chat",
            "tests/api_resources/responses",
            "tests/api_resources/conversations",
            *(
                f"tests/api_resources/test_{name}.py"
                for name in ("completions", "models", "responses", "conversations", "embeddings", "files", "batches")
            ),
        ),
        plugin="openai_plugin",
        config="pyproject.toml",
        options=("-o", "addopts="),
        environment={"TEST_API_BASE_URL": "{url}/v1"},
        reasons={
            "all_params": CONTRADICTS,
            "holds nothing to answer": "Asks for a response to nothing; a 400, as there is no stored prompt.",
            "404 - Not Found": NOT_SERVED,
            "Method Not Allowed": NOT_SERVED,
            "input_file_id": "Makes a batch of a file that does not exist.",
            "RESPX": "Needs the SDK's own double of a server.",
            "Cannot cancel a batch": "The batch is over before it is cancelled.",
            "APIResponseValidationError": "Asks for base64 and then, being strict, wants numbers: no server can pass.",
        },
    ),
    "vllm": Suite(
        directory=".",
        files=tuple(
            f"tests/entrypoints/openai/{name}.py"
            for name in (
                "chat_completion/test_chat",
                "chat_completion/test_chat_echo",
                "chat_completion/test_chat_logit_bias_validation",
                "completion/test_completion",
                "completion/test_prompt_validation",
                "test_return_token_ids",
                "test_return_tokens_as_ids",
            )
        ),
        plugin="vllm_plugin",
        options=("-o", "asyncio_mode=auto", "--confcutdir=tests/entrypoints", "--continue-on-collection-errors"),
        reasons={
            "test_invocations": NOT_SERVED,
            "test_custom_role": "Sends a role that OpenAI does not have; a 400.",
            "test_long_seed": OWN_WORDS,
            "multiple_non_integer_keys": OWN_WORDS,
            "logprob_token_ids": "`logprob_token_ids` is a 400.",
            "use_beam_search": "`use_beam_search` is a 400.",
            "test_chat_streaming": "Expects `content` in the last delta, which is `{}` as in OpenAI's answers.",
            "stream_options": "Expects the last text and `finish_reason` in one chunk.",
            "test_parallel_streaming": "Expects the last text and `finish_reason` in one chunk.",
            "test_top_logprobs": "Asks for log-probabilities of the whole vocabulary; -1 gives 20 here.",
            "test_prompt_logprobs": "Asks for log-probabilities of the whole vocabulary; -1 gives 20 here.",
            "prompt_embeds": "`prompt_embeds` is a 400.",
            "test_comparison_with_prompt_logprobs": "Counts the end token in `logprobs`; it has no text and no entry.",
            "test_echo_logprob_completion": "Echoes special tokens; they are left out of the text here.",
            "more_than_one_prompt_logprobs": ANOTHER_MODEL,
            "structured_outputs_choice": ANOTHER_MODEL,
            "tool_use": ANOTHER_MODEL,
            "CompletionUsa": ANOTHER_MODEL,
            "result": ANOTHER_MODEL,
            "test_complex_message_content": ANOTHER_MODEL,
            "'length'": ANOTHER_MODEL,
            "unique completions": ANOTHER_MODEL,
            "Timeout": "Takes too long on a small machine.",
        },
    ),
    "llama.cpp": Suite(
        directory="tools/server/tests",
        files=tuple(f"unit/test_{name}.py" for name in ("chat_completion", "compat_oai_responses", "security")),
        plugin="llama_plugin",
        environment={"DEBUG_EXTERNAL": "1", "PORT": "{port}"},
        reasons={
            "startswith": "Expects llama.cpp's build number as `system_fingerprint`.",
            "with_openai_library": ANOTHER_MODEL,
            "'' is None": 'Expects no `content` in the first delta, which is `""` as in OpenAI\'s answers.',
            "timings": OWN_FIELDS,
            "__verbose": OWN_FIELDS,
            "return_progress": OWN_FIELDS,
            "apply_chat_template": OWN_FIELDS,
            "telemet": OWN_FIELDS,
            "test_logit_bias": OWN_FIELDS,
            "messages7": "Two assistant turns in a row are a 400 there; here the model's template has the say.",
            "context_size": "Needs a server with a small context.",
            "api_key": "Needs a server with a key; tests/gateway/test_http.py has these.",
            "cors": "Needs a server that allows some pages alone; tests/gateway/test_http.py has these.",
            "local_media": "Images, for models that see.",
            "404": "An endpoint or a model that is not served.",
            "cached_tokens": ANOTHER_MODEL,
            "codellama": ANOTHER_MODEL,
        },
    ),
}
