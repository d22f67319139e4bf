"""`wye doctor`: what is installed, which device and kernels would be chosen and why, what is missing.

Also runs as `python -m gateway.doctor [--json] [--home DIRECTORY]` where neither the gateway's dependencies nor even
torch are installed: every part imports what it needs by itself and says so when that fails.
"""
