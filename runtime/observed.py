"""Collects the inputs of a model's linear layers over a text, for `mxc quantize --calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mxc.artifact.manifest import EXPERTS
from mxc.errors import RequestError
from mxc.runtime import arrays

if TYPE_CHECKING:
    from mxc.runtime.session import Model

#: Called with the number of tokens done and the number of all tokens.
Progress = Callable[[int, int], None]


def observe(
    model: Model,
    tokens: Sequence[int],
    take: Callable[[dict[str, NDArray[Any]]], None],
    progress: Progress | None = None,
    rows: int | None = None,
) -> int:
    """Feed `tokens` in sequences of the maximum length; return the number of tokens fed.

    take: called after each step with the observed inputs by their names in the manifest, float32
    [T, K], and with the chosen experts as int32. rows: the most tokens T per step, by default the
    most that the model takes. Raises RequestError where the artifact does not return inputs, or
    there are no tokens.
    """
    record = model.manifest.model
    if record is None or all(f.unobserved == f for f in model.functions.values()):
        raise RequestError(f"{model.path}: its functions return no inputs of linear layers")
    if not len(tokens):
        raise RequestError("a text of 0 tokens: wanted 1 at least; give a longer one")
    chunk = min(rows or record.rows, record.rows)
    window, count = record.max_sequence_length, len(tokens)

    def observed(results: dict[str, Any]) -> None:
        kinds = {name: "i32" if name.startswith(EXPERTS) else "f32" for name in results}
        take({n: arrays.to_host(model.device, v, kinds[n]) for n, v in results.items()})

    model.observer = observed
    try:
        for start in range(0, count, window):
            sequence = model.sequence()
            end = min(start + window, count)
            for first in range(start, end, chunk):
                piece = tokens[first : min(first + chunk, end)]
                sequence.feed(piece, last_only=True)
                if progress is not None:
                    progress(first + len(piece), count)
    finally:
        model.observer = None
    return count
