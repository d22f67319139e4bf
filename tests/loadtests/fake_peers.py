"""Stand-ins for peers: small scripts that answer as llama.cpp's programs, a compiler or OpenVINO GenAI would."""

from __future__ import annotations

import sys
from pathlib import Path

DECODE_RATE = 50.0
PREFILL_RATE = 400.0
GIGABYTES_PER_S = 12.0

_ARGUMENTS = """
import json, sys
arguments = sys.argv[1:]
def value(name):
    return arguments[arguments.index(name) + 1]
"""

_BATCHED_BENCH = f"""
print("loading", value("-m"))
print(json.dumps({{"pp": int(value("-npp")), "pl": int(value("-npl")), "n_kv_max": int(value("-c")),
                  "speed_tg": {DECODE_RATE} * int(value("-npl"))}}))
"""

_BENCH = f"""
print(json.dumps({{"n_prompt": int(value("-p")), "avg_ts": {PREFILL_RATE}}}))
"""

_QUANTIZE = """
options, source, target, kind = arguments[0], arguments[1], arguments[2], arguments[3]
assert options == "--allow-requantize", options
with open(source, "rb") as read, open(target, "wb") as written:
    written.write(read.read() + kind.encode())
"""

_SERVER = """
import http.server, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let their background jobs ignore it
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"data": [{"id": "served"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
print(json.dumps(arguments), flush=True)
http.server.HTTPServer((value("--host"), int(value("--port"))), Handler).serve_forever()
"""

_OPENVINO = """
print(json.dumps({"version": "fake"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    short = len(asked["prompts"]) == 3
    times = [[0.1 * (i + 1) for i in range(asked["num_output"] - short)] for _ in asked["prompts"]]
    if len(asked["prompts"]) == 4:
        sys.exit("out of memory")
    print(json.dumps({"times": times}), flush=True)
"""

_PROBE = f"""
threads, mebibytes, passes, streams = map(int, arguments)
print(*[({GIGABYTES_PER_S} if streams == 4 else 5.0) + extra for extra in (-1, 0, 3)], sep="\\n")
"""

_COMPILER = f"""
import pathlib
target = pathlib.Path(value("-o"))
target.write_text({f"#!{sys.executable} -S" + _ARGUMENTS + _PROBE!r})
target.chmod(0o755)
"""


def write_script(path: Path, body: str) -> Path:
    """Writes a Python program that can be executed by its name; `value(name)` reads an option."""
    path.write_text(f"#!{sys.executable} -S{_ARGUMENTS}{body}", encoding="utf-8")
    path.chmod(0o755)
    return path


def write_llama(directory: Path) -> Path:
    """llama.cpp's programs; every rate is `DECODE_RATE` a sequence or `PREFILL_RATE`."""
    directory.mkdir(exist_ok=True)
    bodies = {"batched-bench": _BATCHED_BENCH, "bench": _BENCH, "quantize": _QUANTIZE, "server": _SERVER}
    for name, body in bodies.items():
        write_script(directory / f"llama-{name}", body)
    return directory


def write_openvino(path: Path) -> Path:
    """An interpreter with OpenVINO GenAI: a token every 0.1 s; one short for 3 prompts, and broken by 4."""
    return write_script(path, _OPENVINO)


def write_compiler(path: Path) -> Path:
    """A C compiler whose programs are memory probes: 5 GB/s, and `GIGABYTES_PER_S` with four streams."""
    return write_script(path, _COMPILER)
