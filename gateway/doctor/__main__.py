"""`python -m gateway.doctor`: the doctor where `wye` itself cannot run."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gateway.doctor.run import main

parser = argparse.ArgumentParser(
    prog="python -m gateway.doctor", description="Say what is installed and what is missing."
)
parser.add_argument("--json", action="store_true", help="print JSON, for programs")
parser.add_argument("--home", type=Path, default=Path(os.environ.get("WYE_HOME") or "~/.cache/wye"), help="model store")
arguments = parser.parse_args()
sys.exit(main(home=arguments.home.expanduser(), as_json=arguments.json))
