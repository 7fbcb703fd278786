"""The stages of each target: tuples of passes under the sentence that holds after them."""

from __future__ import annotations

from mxc.dialects.targets import target as target_record
from mxc.passes.base import Pipeline, Stage
from mxc.passes.normalise import NORMALISE

_NORMALISE = Stage(
    name="normalise",
    invariant="Every scaled contraction is canonical; no tensor holds a broadcast scale or a "
    "dequantised weight.",
    passes=NORMALISE,
)


def pipeline(target: str) -> Pipeline:
    """The pipeline for a target by name. Raises TargetError where the name is unknown."""
    return Pipeline(target_record(target).name, (_NORMALISE,))
