"""Open an Engine or a TextModel over a loaded artifact, sized to the memory of its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxc.artifact.manifest import ModelRecord
from mxc.errors import RequestError
from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.schedule import StepLimits
from mxc.runtime.machine import available_memory_bytes
from mxc.runtime.paged_steps import PagedSteps, language_model, page_bytes
from mxc.runtime.text import Text

if TYPE_CHECKING:
    from mxc.runtime.session import Model

#: Bytes of a GPU's memory for keys, values and states.
_DEVICE_BYTES = 8 << 30
#: Where an allocation fails with a budget below this many bytes, the error is raised.
_LEAST_BYTES = 64 << 20


def open_engine(model: Model, *, limits: StepLimits | None = None, queue: int = 1024) -> Engine:
    """Open an engine over `model`; RequestError where it is not a language model."""
    chosen = limits or StepLimits()
    record = language_model(model)
    budget = available_memory_bytes() // 2 if model.runs_on_cpu else _DEVICE_BYTES
    return Engine(_steps(model, record, chosen, budget), chosen, queue)


def open_text_model(
    model: Model, *, limits: StepLimits | None = None, queue: int = 1024
) -> TextModel:
    """Open a text model over `model`.

    Raises RequestError where `model` is not a language model, and ArtifactError where the artifact
    has no tokenizer.
    """
    record = language_model(model)
    text = Text.load(model.path)
    return TextModel(open_engine(model, limits=limits, queue=queue), text, record.eos_tokens)


def _steps(model: Model, record: ModelRecord, limits: StepLimits, budget: int) -> PagedSteps:
    """Allocate a step model of `budget` bytes, halving the budget until allocation succeeds."""
    while True:
        pages, states = capacity(record, limits, budget)
        try:
            return PagedSteps(model, pages, states)
        except RequestError:
            if budget < _LEAST_BYTES:
                raise
            budget //= 2


def capacity(record: ModelRecord, limits: StepLimits, budget: int) -> tuple[tuple[int, ...], int]:
    """Return the number of pages of each kind, and of state slots, for `limits.sequences`.

    The numbers suffice for that many sequences of full length where `budget` bytes allow it. They
    are smaller otherwise, but at least one page and one slot: requests then wait in the engine, and
    it refuses a request that never fits.
    """
    size, each = record.page_size, page_bytes(record)
    states = 0
    if record.states:
        most = budget // 2 // max(1, record.bytes_per_sequence)
        states = max(1, min(limits.sequences, most))
        budget -= states * record.bytes_per_sequence
    whole = limits.sequences * -(-record.max_sequence_length // size)
    wanted = []
    for kind in record.pages:
        wanted.append(whole)
        if kind.window is not None:
            # Pages in the windows of all sequences and of a step; as many again to cache prefixes.
            seen = limits.sequences * (-(-kind.window // size) + 2) + -(-limits.tokens // size)
            wanted[-1] = min(whole, 2 * seen)
    bytes_ = [count * page for count, page in zip(wanted, each, strict=True)]
    windows = sum(
        taken for taken, kind in zip(bytes_, record.pages, strict=True) if kind.window is not None
    )
    # Pages of windows do not grow with the sequences: they get up to half of the memory first.
    for_windows = min(windows, budget // 2) if windows < sum(bytes_) else budget
    found = []
    for count, kind in zip(wanted, record.pages, strict=True):
        needed, given = windows, for_windows
        if kind.window is None:
            needed, given = sum(bytes_) - windows, budget - for_windows
        found.append(max(1, min(count, count * max(0, given) // max(1, needed))))
    return tuple(found), states
