"""What a gateway worker loads."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "numpy", "gguf", "safetensors", "huggingface_hub")


def test_the_text_side_loads_no_heavy_library() -> None:
    code = (
        "import sys, engine.client, engine.errors, engine.request, engine.text.model, extensions.runtime\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
