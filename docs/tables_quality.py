"""What number formats cost in quality, as tables: from files that `python -m loadtests.quality` has written."""

from __future__ import annotations

import json

from docs.markdown import table
from docs.tables_results import RESULTS


def quality() -> str:
    """Of all formats that were there first, beside float32."""
    return _tables("quality")


def quantized() -> str:
    """Of weights, K and V in one byte a number, beside float32 and bfloat16."""
    return _tables("quality-quantized")


def _tables(stem: str) -> str:
    """Where it was measured, and every table of the result file."""
    document = json.loads((RESULTS / f"{stem}.json").read_text(encoding="utf-8"))
    environment = document["environment"]
    where = (
        f"`{stem}.json`: {environment['cpu']}; torch {environment['versions']['torch']}; {environment['date'][:10]}, "
        f"{environment['commit']}. Windows of {document['window']} tokens, read {document['chunk']} a step."
    )
    parts = [where]
    for shown in document["tables"]:
        parts += [f"**{shown['title']}**", table(shown["headers"], shown["rows"])]
    return "\n\n".join(parts)
