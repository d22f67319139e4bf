"""The native CPU step: whether it was built, which forms this processor runs, and which would be used."""

from __future__ import annotations

from pathlib import Path

from gateway.doctor.report import Finding, Report

_TITLE = "native step"
_LOSS = "on a CPU steps are computed with torch, several times slower"


def examine_native(report: Report, *, has_cuda: bool) -> None:
    """Adds what there is of it.

    Args:
        report: Added to.
        has_cuda: Whether a CUDA device is there: then nobody misses what is for CPUs.
    """
    try:
        from engine.native.library import FORM_VARIABLE, build_record, native_status

        record = build_record()
        status = native_status()
    except Exception as error:  # whatever is broken here is broken for the engine too
        meaning = f"{type(error).__name__}: {error}"
        report.add(_TITLE, {"state": "does not work"}, [Finding("problem", _TITLE, meaning)])
        return
    facts, findings = {}, []
    if record is not None and record.built:
        facts["built"] = f"by {record.compiler}, forms {', '.join(record.forms)}"
        if record.left_out:
            facts["left out"] = f"{', '.join(record.left_out)}: the compiler does not know their instructions"
        if _is_outdated(record.sources):
            meaning = "its sources have changed since it was built; `make install` builds it anew"
            findings.append(Finding("notice", _TITLE, meaning))
    if status.available:
        facts["forms of this processor"] = ", ".join(status.forms)
        facts["form"] = f"{status.form} ({'the best' if status.form == status.forms[0] else FORM_VARIABLE})"
    else:
        facts["state"] = f"not available: {status.reason}"
        if not has_cuda:
            findings.append(Finding("notice", _TITLE, f"{status.reason}: {_LOSS}"))
    report.add(_TITLE, facts, findings)


def _is_outdated(digest: str) -> bool:
    import engine.native
    from engine.native.building.sources import whole_digest

    sources = Path(engine.native.__path__[0]) / "src"
    return sources.is_dir() and whole_digest(sources) != digest
