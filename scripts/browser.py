"""Sees to it that there is a Chromium for the tests of the console: `python scripts/browser.py`.

Where one is on the PATH nothing is done. Elsewhere root on Debian or Ubuntu gets the package of its distribution. Who
can have neither is told so, and the tests that need one are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")


def find_browser() -> str | None:
    """Path of the program; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


def main() -> int:
    """Installs what is missing; 0 whether or not that worked."""
    if find_browser() is not None:
        return 0
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        print("no Chromium here: the console is not tested; install the package 'chromium'", file=sys.stderr)
        return 0
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [apt, "install", "--yes", "--quiet", "--no-install-recommends", *PACKAGES]
    for command in ([apt, "update", "--quiet"], install):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"Chromium could not be installed, the console is not tested: {done.stderr.strip()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
