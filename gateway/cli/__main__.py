"""`python -m gateway.cli`: the same as `wye`."""

from gateway.cli import main

main()
