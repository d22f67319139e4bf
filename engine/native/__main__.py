"""`python -m engine.native`: one line on whether the native step is here."""

from __future__ import annotations

import sys

from engine.errors import ModelLoadError
from engine.native.library import native_status

try:
    status = native_status()
except ModelLoadError as error:
    sys.exit(f"error: {error}")
if status.available:
    print(f"Native CPU step: {status.form} (this processor runs {', '.join(status.forms)})")
else:
    print(f"No native CPU step, so a CPU computes with torch: {status.reason}")
