"""What `loadtests.card` measures: parts, each some commands with the sizes of a GPU or of a dry run on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests import card_numbers as tell
from loadtests.card_run import Case

_DEVICE_TESTS = (
    "tests/engine/sampling/test_device.py",
    "tests/engine/models/test_cuda.py",
    "tests/equivalence/test_embeddings.py",
)

GPU_TESTS: Mapping[str, tuple[Sequence[str], float, bool]] = {
    "histories": (["tests/equivalence/test_cuda.py"], 300, True),
    "device": ([*_DEVICE_TESTS, "-m", "gpu"], 120, False),
    "attention": (["tests/equivalence/test_attention_scores.py"], 180, True),
    "conformance": (["tests/conformance"], 240, False),
    "kernels": (["tests/engine/cuda", "tests/engine/attention", "tests/engine/programs/test_torch_form.py"], 420, True),
}
"""Tests that a GPU runs, by name: arguments of pytest, seconds, and whether several processes may share them."""

SHAPES = ("qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Where and how it is measured.

    Attributes:
        card: Of the files' names, e.g. `h200`.
        device: For `--device`.
        models: Directory for models of random weights.
        dry: Tiny sizes.
        tokenizer: Of those models: a directory, a file, a stored model, or `made`.
        real_model: Model whose quality is measured; None has none.
        workers: Gateway processes, and processes of clients and tests.
        histories: Random histories of the tests.
    """

    card: str
    device: str
    models: Path
    dry: bool = False
    tokenizer: str
    real_model: str | None = None
    workers: int = 4
    histories: int = 100

    @property
    def served(self) -> Path:
        """Directory of the model that servers load."""
        return self.models / ("tiny-random" if self.dry else "qwen3-random")

    def sizes(self, full: str, tiny: str) -> list[str]:
        """Arguments for a GPU, or for a dry run."""
        return (tiny if self.dry else full).split()

    def limit(self, full_s: float) -> float:
        """Seconds a command may take."""
        return 240.0 if self.dry else full_s

    def model(self, shape: str) -> list[str]:
        """Arguments that name a model of random weights."""
        return ["--model", str(self.served)] if self.dry else ["--shape", shape]

    def shapes(self) -> Sequence[str]:
        """Shapes whose steps are measured."""
        return ("tiny",) if self.dry else SHAPES

    def file(self, kind: str, *parts: str) -> str:
        """Name of a result file, as the docs look for them."""
        return "-".join([kind, self.card, *(part for part in parts if part)]) + ".json"


@dataclass(frozen=True, slots=True)
class Part:
    """Commands that answer one question.

    Attributes:
        about: The question.
        cases: Makes them, in order; of what cannot be asked here, none.
        runs_dry: It can be tried out without a GPU.
    """

    about: str
    cases: Callable[[Setting], list[Case]]
    runs_dry: bool = True


def _checks(setting: Setting) -> list[Case]:
    chosen = {"tables": (["tests/loadtests/test_tables.py"], 60.0, False)} if setting.dry else GPU_TESTS
    return [
        Case(
            name=name,
            module="loadtests.card_checks",
            arguments=["--", *arguments, *(["-n", str(3 * setting.workers)] if spreads else [])],
            result=f"checks-{name}.json",
            limit_s=setting.limit(limit_s),
            environment={
                "WYE_TEST_DEVICE": "cpu" if setting.dry else "cuda",
                "WYE_TEST_HISTORIES": str(setting.histories),
            },
            tell=tell.checks,
        )
        for name, (arguments, limit_s, spreads) in chosen.items()
    ]


SANITIZED: Mapping[str, tuple[str, Sequence[str]]] = {
    "memory": ("memcheck", ["tests/engine/cuda", "tests/engine/attention/test_contract.py"]),
    "races": ("racecheck", ["tests/engine/cuda/test_decode_attention.py", "tests/engine/cuda/test_matmul.py"]),
}
"""Tests under NVIDIA's sanitizer: its tool, and which."""


def _sanitizer(setting: Setting) -> list[Case]:
    return [
        Case(
            name=name,
            module="loadtests.card_checks",
            arguments=["--sanitizer", tool, "--", *tests],
            result=f"sanitizer-{name}.json",
            limit_s=900,
            environment={"WYE_TEST_DEVICE": setting.device},
            tell=tell.checks,
        )
        for name, (tool, tests) in SANITIZED.items()
    ]


def _offline(
    setting: Setting,
    shape: str,
    suffix: str,
    arguments: Sequence[str],
    tells: tell.Tell,
    environment: Mapping[str, str] | None = None,
    kind: str = "offline",
) -> Case:
    name = f"{shape}-{suffix}" if suffix else shape
    return Case(
        name=name,
        module="loadtests.offline",
        arguments=[*setting.model(shape), "--device", setting.device, *arguments],
        result=setting.file(kind, shape, suffix),
        limit_s=setting.limit(180),
        environment=environment or {},
        tell=tells,
    )


def _steps(setting: Setting) -> list[Case]:
    sizes = setting.sizes(
        "--widths 1 8 32 64 256 --prompt 128 --output 272 --prefill 2048 --batch 16 --warm-up 1",
        "--widths 1 2 --prompt 16 --output 8 --prefill 32 --batch 2 --rounds 1 --context 64 --pages 256",
    )
    cases = []
    for shape in setting.shapes():
        pages = [] if setting.dry else ["--pages", "18000" if shape == SHAPES[0] else "12000"]
        context = ["--context", "4096", "--context-widths", "1", "64"] if pages and shape == SHAPES[0] else []
        cases.append(_offline(setting, shape, "", [*sizes, *pages, *context], tell.steps))
        if not setting.dry:
            drawn = [*sizes, *pages, "--temperature", "0.8"]
            cases.append(_offline(setting, shape, "sampled", drawn, tell.steps))
    return cases


def _prompts(setting: Setting) -> list[Case]:
    sizes = setting.sizes(
        "--widths --prefill 128 512 2048 --batch 16 --rounds 7 --warm-up 12 --pages 12000",
        "--widths --prefill 32 --batch 2 --rounds 1 --warm-up 1 --pages 256",
    )
    cases = []
    for shape in setting.shapes()[:2]:
        cases.append(_offline(setting, shape, "prompts", sizes, tell.prompts, {"WYE_PROMPT_GRAPHS": "0"}))
        if not setting.dry:
            recorded = {"WYE_PROMPT_GRAPHS": "1"}
            cases.append(_offline(setting, shape, "prompts-recorded", sizes, tell.prompts, recorded))
    if not setting.dry:  # the first ten such steps are not recorded yet
        long = ["--widths", "1", "--output", "64", "--prefill", "2048", "--batch", "16", "--pages", "68496"]
        rounds = ["--rounds", "9", "--warm-up", "12"]
        cases.append(_offline(setting, SHAPES[0], "prompts-cudnn", [*long, *rounds], tell.prompts))
        long = ["--widths", "1", "--output", "64", "--prefill", "2048", "--batch", "16", "--pages", "12000"]
        cases.append(_offline(setting, SHAPES[2], "prompts-recorded", [*long, *rounds], tell.prompts))
    return cases


def _kv(setting: Setting) -> list[Case]:
    sizes = setting.sizes(
        "--widths 1 64 256 --prompt 128 --output 272 --prefill 2048 --batch 16 --rounds 2 --warm-up 1 --pages 18000 "
        "--context 4096 --context-widths 1 64",
        "--widths 1 --prompt 16 --output 8 --prefill 32 --rounds 1 --context 64 --pages 256 --step torch",
    )
    forms = {
        "bfloat16": "--kv-dtype bfloat16",
        "kv-int8": "--kv-dtype int8",
        "kv-fp8": "--kv-dtype fp8",
        "int8": "--weights int8",
        "fp8": "--weights fp8",
        "int8-kv-int8": "--weights int8 --kv-dtype int8",
    }
    chosen = ["kv-int8"] if setting.dry else list(forms)
    shape = setting.shapes()[0]
    # The docs show the numbers of bfloat16 from another part; here they are what the others are compared with.
    return [
        _offline(
            setting,
            shape,
            form,
            [*sizes, *forms[form].split()],
            tell.steps,
            kind="baseline" if form == "bfloat16" else "offline",
        )
        for form in chosen
    ]


def _model(setting: Setting) -> Case:
    shape = "tiny" if setting.dry else "qwen3-0.6b"
    return Case(
        name="model",
        module="loadtests.random_model",
        arguments=[
            *("--shape", shape, "--tokenizer", setting.tokenizer, "--out", str(setting.served)),
            *("--device", setting.device),
        ],
        limit_s=setting.limit(120),
        unless=setting.served / "config.json",
    )


def _programs(setting: Setting) -> list[Case]:
    sizes = setting.sizes(
        "--widths 1 8 64 --step-widths 1 8 32 --beside 1 64 --samples 64 --pages 24000 --tokens 272 --gateways 8",
        "--widths 2 --step-widths 1 --beside --tokens 8 --rounds 2 --pages 256 --gateways 2",
    )
    arguments = ["--model", str(setting.served), "--device", setting.device, *sizes]
    return [
        Case(
            name=suffix or "plain",
            module="loadtests.programs",
            arguments=arguments,
            result=setting.file("programs", suffix),
            limit_s=setting.limit(180),
            environment={"WYE_PROGRAM_GRAPHS": graphs},
            tell=tell.programs,
        )
        for graphs, suffix in (("1", "recorded"), ("0", ""))
        if graphs == "0" or not setting.dry
    ]


def _http(setting: Setting) -> list[Case]:
    sizes = setting.sizes(
        "--concurrency 1 8 64 256 --prompt 128 --output 256 --warm-up 2",
        "--concurrency 2 --requests 4 --prompt 16 --output 8",
    )
    pages, processes = ("256", "2") if setting.dry else ("12000", str(2 * setting.workers))
    serve = f"--device {setting.device} --kv-pages {pages} --workers {1 if setting.dry else setting.workers}"
    return [
        Case(
            name="streams",
            module="loadtests.run",
            arguments=[
                *("--model", str(setting.served), "--device", setting.device, *sizes),
                *("--processes", processes, "--timeout", "120", f"--serve-args={serve}"),
            ],
            result=setting.file("run", setting.shapes()[0]),
            limit_s=setting.limit(300),
            tell=tell.http,
        ),
    ]


def _profile(setting: Setting) -> list[Case]:
    sizes = setting.sizes("--pages 12000", "--pages 256 --steps 4 --warm-up 2 --step torch")
    widths = {"qwen3-0.6b": ["1", "8", "64", "256"], "llama-3.1-8b": ["1", "64"], "tiny": ["1"]}
    return [
        Case(
            name=shape,
            module="loadtests.step_profile",
            arguments=[*setting.model(shape), "--device", setting.device, "--widths", *widths[shape], *sizes],
            result=setting.file("step_profile", shape),
            limit_s=setting.limit(150),
            tell=tell.profile,
        )
        for shape in setting.shapes()
        if shape in widths
    ]


def _start(setting: Setting) -> list[Case]:
    arguments = ["--model", str(setting.served), "--device", setting.device]
    pages = "256" if setting.dry else "12000"
    return [
        Case(
            name="server",
            module="loadtests.start",
            arguments=[*arguments, "--warm", "1" if setting.dry else "2", f"--serve-args=--kv-pages {pages}"],
            result=setting.file("start", setting.shapes()[0]),
            limit_s=setting.limit(400),
            tell=tell.start,
        ),
    ]


def _memory(setting: Setting) -> list[Case]:
    sizes = setting.sizes(
        "--pool-mib 4096 32768 0 --widths 1 64 256", "--pool-mib 16 --widths 1 --prompt 16 --output 4"
    )
    shape = setting.shapes()[0]
    return [
        Case(
            name=shape,
            module="loadtests.memory",
            arguments=[*setting.model(shape), "--device", setting.device, *sizes],
            result=setting.file("memory", shape),
            limit_s=setting.limit(180),
            tell=tell.memory,
        )
    ]


def _quality(setting: Setting) -> list[Case]:
    model = str(setting.served) if setting.dry else setting.real_model
    if model is None:
        return []
    sizes = setting.sizes("--forms cuda --tokens 512 --chunk 256", "--forms torch-int8 --tokens 8")
    return [
        Case(
            name="forms",
            module="loadtests.quality",
            arguments=["--model", model, *sizes],
            result=setting.file("quality"),
            limit_s=setting.limit(300),
            tell=tell.quality,
        ),
    ]


PARTS: Mapping[str, Part] = {
    "checks": Part("tests that need a GPU", _checks),
    "steps": Part("decoding steps and prompts of known shapes, greedily and by temperature", _steps),
    "prompts": Part("prompts alone, with and without recorded steps", _prompts),
    "programs": Part("programs beside plain completions, with and without recorded steps", _programs),
    "kv": Part("steps with weights, K and V in one byte a number", _kv),
    "http": Part("streams over HTTP", _http),
    "profile": Part("kernel by kernel, where the time of a step goes", _profile),
    "start": Part("from the command to ready, kernels to be compiled or kept", _start),
    "memory": Part("what is used beside the KV pool", _memory),
    "quality": Part("what formats cost a real model", _quality),
    "sanitizer": Part("whether kernels read or write what is not theirs, or race", _sanitizer, runs_dry=False),
}
"""In the order in which they run."""


def cases_of(part: str, setting: Setting) -> list[Case]:
    """Commands of a part, behind the one that writes the model that they load, if they do."""
    cases = PARTS[part].cases(setting)
    loads = any(str(setting.served) in case.arguments for case in cases)
    return [_model(setting), *cases] if loads else cases
