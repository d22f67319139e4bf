"""Runs in an interpreter that has OpenVINO GenAI: `openvino_child.py MODEL THREADS KV_GIB`. Imports nothing of Wye.

One JSON document a line. First it says `{"version": ...}`; then it answers every `{"prompts": [[id, ...], ...],
"num_output": n}` with `{"times": [[seconds, ...], ...]}`: when each token of each prompt came out, counted from the
moment all of them were submitted. It ends with its input.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

MAX_BATCH_TOKENS = 4096


def main() -> int:
    """Serves requests until there are no more."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # the library prints to it
    path, threads, kv_gib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    openvino, genai, numpy = (importlib.import_module(name) for name in ("openvino", "openvino_genai", "numpy"))
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = kv_gib
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = MAX_BATCH_TOKENS
    pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    print(json.dumps({"version": genai.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        tensors = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in asked["prompts"]]
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = asked["num_output"]
        config.ignore_eos = True
        config.do_sample = False
        print(json.dumps({"times": generate(pipeline, tensors, config)}), file=answers, flush=True)
    return 0


def generate(pipeline: Any, prompts: list[Any], config: Any) -> list[list[float]]:
    """Seconds at which each token of each prompt came out."""
    start = time.perf_counter()
    handles = [pipeline.add_request(index, prompt, config) for index, prompt in enumerate(prompts)]
    times: list[list[float]] = [[] for _ in handles]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter() - start
        for handle, stamps in zip(handles, times, strict=True):
            while handle.can_read():
                stamps.extend(now for output in handle.read().values() for _ in output.generated_ids)
    return times


if __name__ == "__main__":
    sys.exit(main())
