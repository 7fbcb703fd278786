"""A loaded artifact as a text model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.schedule import StepLimits
from mxc.runtime.sequence_steps import SequenceSteps
from mxc.runtime.text import Text

if TYPE_CHECKING:
    from mxc.runtime.session import Model


def open_text_model(
    model: Model, *, limits: StepLimits | None = None, queue: int = 1024
) -> TextModel:
    """A text model over `model`.

    Raises RequestError where it is not a language model; ArtifactError where the artifact has no
    tokenizer.
    """
    chosen = limits or StepLimits()
    steps = SequenceSteps(model, chosen.sequences)
    record = model.manifest.model
    assert record is not None  # SequenceSteps refuses a model without it
    return TextModel(Engine(steps, chosen, queue), Text.load(model.path), record.eos_tokens)
