"""The inputs of a model's linear layers over a text, as `mxc quantize --calibrate` wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mxc.artifact.manifest import EXPERTS
from mxc.errors import RequestError
from mxc.runtime import arrays

if TYPE_CHECKING:
    from mxc.runtime.session import Model

#: Called with the number of tokens that are done, and of all.
Progress = Callable[[int, int], None]


def observe(
    model: Model,
    tokens: Sequence[int],
    take: Callable[[dict[str, NDArray[Any]]], None],
    progress: Progress | None = None,
) -> int:
    """Feed `tokens` in sequences as long as the model holds; how many were fed.

    `take` receives what functions return of inputs, by the names in the manifest: float32 [T, K],
    and int32 of experts. Whole chunks of prefill are fed, so that no row stands for padding. Raises
    RequestError where the artifact does not return inputs, or there are too few tokens.
    """
    record = model.manifest.model
    if record is None or all(f.unobserved == f for f in model.functions.values()):
        raise RequestError(f"{model.path}: its functions return no inputs of linear layers")
    chunk = record.prefill_chunk
    window = record.max_sequence_length // chunk * chunk
    count = len(tokens) // chunk * chunk
    if not count:
        raise RequestError(
            f"a text of {len(tokens)} tokens: wanted {chunk} at least; give a longer one"
        )

    def observed(results: dict[str, Any]) -> None:
        kinds = {name: "i32" if name.startswith(EXPERTS) else "f32" for name in results}
        take({n: arrays.to_host(model.device, v, kinds[n]) for n, v in results.items()})

    model.observer = observed
    try:
        for start in range(0, count, window):
            sequence = model.sequence()
            for first in range(start, min(start + window, count), chunk):
                sequence.feed(tokens[first : first + chunk], last_only=True)
                if progress is not None:
                    progress(first + chunk, count)
    finally:
        model.observer = None
    return count
