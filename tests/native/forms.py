"""Which forms of the native step can be tested here."""

from __future__ import annotations

import pytest

from engine.models.config import ModelConfig
from engine.native.decoder import NativeDecoder
from engine.native.library import FORM_VARIABLE, native_status
from tests.native.shapes import random_weights

STATUS = native_status()

FORMS = STATUS.forms or ("none",)
"""All that this processor can run; a name that nothing has where the native step was not built."""

BEST = FORMS[0]

needs_native = pytest.mark.skipif(not STATUS.available, reason=f"no native step: {STATUS.reason}")


def native_decoder(
    config: ModelConfig, *, form: str = BEST, int8: bool = False, num_threads: int = 1, seed: int = 0
) -> NativeDecoder:
    """A decoder of one form, with the weights that `random_weights` makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FORM_VARIABLE, form)
        decoder = NativeDecoder(config, random_weights(config, seed=seed), num_threads=num_threads, int8=int8)
    assert decoder.form == form
    return decoder
