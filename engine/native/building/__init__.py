"""How the native step is compiled; used by `setup.py`, so nothing here needs more than the standard library.

setup.py ── build.py ──┬── flags.py      which file is compiled how
                       ├── compiler.py   the compiler of this machine and what it knows
                       ├── cache.py      what was compiled before
                           └── record.py     what became of it, for those who ask later
"""
