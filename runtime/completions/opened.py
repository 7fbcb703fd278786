"""A loaded artifact as a text model: how much KV cache it gets, and what its steps may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mxc.errors import RequestError
from mxc.runtime.arrays import DTYPES
from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.schedule import StepLimits
from mxc.runtime.text import Text

if TYPE_CHECKING:
    from mxc.artifact.manifest import ModelRecord, PageRecord
    from mxc.runtime.session import Model

#: Bytes of KV cache where nobody says how many. On CPUs memory is taken when a page is first used.
DEFAULT_CACHE = 2 << 30


def open_text_model(
    model: Model,
    *,
    cache_bytes: int = DEFAULT_CACHE,
    limits: StepLimits | None = None,
    queue: int = 1024,
) -> TextModel:
    """A text model over `model`, whose KV cache takes at most `cache_bytes`.

    Raises RequestError where it is not a language model, or not one sequence fits; ArtifactError
    where the artifact has no tokenizer.
    """
    record = model.manifest.model
    if record is None:
        raise RequestError(f"{model.path}: not a language model: it generates no text")
    chosen = limits or StepLimits()
    text = Text.load(model.path)
    pages = _pages(record, cache_bytes, chosen)
    steps = model.steps(pages, chosen.sequences if record.states else 0)
    return TextModel(Engine(steps, chosen, queue), text, record.eos_tokens)


def _pages(record: ModelRecord, cache_bytes: int, limits: StepLimits) -> list[int]:
    """The pages of each kind: as many tokens as memory holds, at most what sequences can have."""
    most = limits.sequences * record.max_sequence_length
    low, high = 0, most
    while low < high:  # the most tokens whose pages fit
        tokens = (low + high + 1) // 2
        counts = _for_tokens(record, tokens, limits)
        taken = sum(n * _bytes(page) for n, page in zip(counts, record.pages, strict=True))
        low, high = (tokens, high) if taken <= cache_bytes else (low, tokens - 1)
    if low < record.max_sequence_length:
        need = _for_tokens(record, record.max_sequence_length, limits)
        mib = sum(n * _bytes(page) for n, page in zip(need, record.pages, strict=True)) >> 20
        raise RequestError(
            f"one sequence of {record.max_sequence_length} tokens takes {mib + 1} MiB of KV cache, "
            f"{cache_bytes >> 20} MiB were given; give more, or compile with a smaller "
            "--max-sequence-length"
        )
    return _for_tokens(record, low, limits)


def _for_tokens(record: ModelRecord, tokens: int, limits: StepLimits) -> list[int]:
    size = record.page_size
    whole = -(-tokens // size) + 1
    counts = []
    for page in record.pages:
        # A window's pages of every sequence, those of a step, and as many again for prefixes.
        seen = whole if page.window is None else -(-page.window // size) + 2
        step = -(-limits.tokens // size)
        counts.append(min(whole, 2 * limits.sequences * seen + step))
    return counts


def _bytes(page: PageRecord) -> int:
    return int(np.prod(page.type.shape)) * DTYPES[page.type.dtype].itemsize
