"""What number formats cost in quality, as tables: from loadtests/results/quality.json."""

from __future__ import annotations

import json

from docs.markdown import table
from docs.tables_results import RESULTS


def quality() -> str:
    """Where it was measured, and every table of the result file."""
    document = json.loads((RESULTS / "quality.json").read_text(encoding="utf-8"))
    environment = document["environment"]
    where = (
        f"`quality.json`: {environment['cpu']}; torch {environment['versions']['torch']}; {environment['date'][:10]}, "
        f"{environment['commit']}. Windows of {document['window']} tokens, read {document['chunk']} a step."
    )
    parts = [where]
    for shown in document["tables"]:
        parts += [f"**{shown['title']}**", table(shown["headers"], shown["rows"])]
    return "\n\n".join(parts)
