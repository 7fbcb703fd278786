"""Tokens one after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from mxc.errors import RequestError

if TYPE_CHECKING:
    from mxc.runtime.sampling import Sampler
    from mxc.runtime.session import Model


def generate(
    model: Model,
    prompt: Sequence[int],
    sampler: Sampler,
    max_new_tokens: int | None = None,
    stop: Collection[int] | None = None,
) -> Iterator[int]:
    """Yield the tokens that follow `prompt` as they are drawn, the stop token included.

    Ends after a token of `stop` (the artifact's end-of-sequence tokens by default), after
    `max_new_tokens`, or, where that is None, when the sequence is as long as the artifact allows.
    Raises RequestError before the first token where prompt and `max_new_tokens` do not fit, or a
    prompt token is not in the vocabulary.
    """
    sequence = model.sequence()
    record = model.manifest.model
    assert record is not None  # model.sequence() refuses a model without it
    # The last token is never fed, so a full cache still gives one more.
    longest = sequence.room - len(prompt) + 1
    count = longest if max_new_tokens is None else max_new_tokens
    if count < 1 and max_new_tokens is not None:
        raise RequestError(f"max-new-tokens must be at least 1, got {max_new_tokens}")
    if count > longest or longest < 1:
        asked = "" if max_new_tokens is None else f" and {max_new_tokens} new ones"
        raise RequestError(
            f"a prompt of {len(prompt)} tokens{asked} is longer than the "
            f"{record.max_sequence_length} that the artifact holds; shorten it, or compile with a "
            "larger --max-sequence-length"
        )
    ends = record.eos_tokens if stop is None else stop
    logits = sequence.feed(prompt, last_only=True)
    while True:
        token = sampler(logits)
        yield token
        count -= 1
        if count == 0 or token in ends:
            return
        logits = sequence.feed([token], last_only=True)
