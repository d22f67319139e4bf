"""Tables of settings, errors and metrics, read from the gateway's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import annotated_types
from pydantic.fields import FieldInfo
from starlette.requests import ClientDisconnect

from docs.markdown import code, first_sentence, table
from engine.request import EngineInfo, GenerationDefaults
from engine.stats import AccountCharge, EngineStats
from gateway.errors import INTERNAL, TABLE, ErrorSpec
from gateway.settings import Settings
from gateway.telemetry import Metrics


def settings_table() -> str:
    """Every field of `Settings`."""
    rows = [
        (code(f"WYE_{name.upper()}"), code(_default(field)), _range(field), field.description or "")
        for name, field in sorted(Settings.model_fields.items())
    ]
    return table(["variable", "default", "allowed", "meaning"], rows)


_FOREIGN: Mapping[type[Exception], str] = {ClientDisconnect: "The client closed the connection while it sent the body."}
"""What errors mean that are no classes of ours."""


def error_table() -> str:
    """Every class of `gateway.errors.TABLE`, by status."""
    rows = [
        _error_row(cls.__name__, spec, _FOREIGN.get(cls) or first_sentence(cls.__doc__)) for cls, spec in TABLE.items()
    ]
    rows.append(_error_row("anything else", INTERNAL, "A bug in Wye; the log of the server has the traceback."))
    return table(["status", "type", "code", "retry", "error", "meaning"], sorted(rows, key=lambda row: row[0]))


def metric_table() -> str:
    """Every metric family that `/metrics` shows once an engine is connected."""
    help_lines: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for line in Metrics(_QuietEngine()).expose().decode().splitlines():
        if line.startswith("# HELP "):
            name, _, text = line[len("# HELP ") :].partition(" ")
            help_lines[name] = text
        elif line.startswith("# TYPE "):
            name, _, kind = line[len("# TYPE ") :].partition(" ")
            kinds[name] = kind
    shown = sorted(name for name in help_lines if not name.endswith("_created"))
    return table(["metric", "type", "meaning"], [(code(name), kinds[name], help_lines[name]) for name in shown])


def _error_row(name: str, spec: ErrorSpec, meaning: str) -> tuple[str, ...]:
    retry = "yes, after `Retry-After`" if spec.retry_after else "no"
    return str(spec.status), code(spec.type), code(spec.code or ""), retry, code(name), meaning


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _range(field: FieldInfo) -> str:
    """What values are allowed, from the annotation: bounds, choices, or a kind."""
    choices = getattr(field.annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        return ", ".join(code(choice) for choice in choices)
    bounds: dict[type[Any], str] = {annotated_types.Ge: "ge", annotated_types.Gt: "gt", annotated_types.Le: "le"}
    words = {"ge": "at least", "gt": "more than", "le": "at most"}
    said = [
        f"{words[bounds[type(item)]]} {getattr(item, bounds[type(item)])}"
        for item in field.metadata
        if type(item) in bounds
    ]
    if said:
        return ", ".join(said)
    return "`true`, `false`" if field.annotation is bool else "names with commas" if choices else "text"


class _QuietEngine:
    """An engine that is up and has done nothing: enough for every metric to be exposed."""

    is_ready = True
    stats = EngineStats()
    charges: Mapping[str, AccountCharge] = {}

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            epoch="",
            model_path="",
            architecture="",
            fingerprint="",
            vocab_size=1,
            hidden_size=1,
            eos_token_ids=(),
            max_model_len=1,
            page_size=1,
            num_pages=1,
            page_bytes=1,
            device="",
            step="",
            dtype="",
            kv_dtype="",
            attention_backend="",
            defaults=GenerationDefaults(),
            num_parameters=1,
            load_s=0.0,
        )
