"""PagedSteps: the StepModel of an artifact, with pools of pages and states on its devices.

The program takes every pool as an argument and returns it, updated in place. On CPUs the operating
system commits the memory of a pool when it is first written, so that a large pool costs only the
part that is used.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import STEP, ModelRecord, TensorType
from mxc.errors import RequestError
from mxc.runtime import arrays
from mxc.runtime.plans import misfit
from mxc.runtime.steps import Integers, PageKind, StepPlan

if TYPE_CHECKING:
    from mxc.runtime.session import Model


def language_model(model: Model) -> ModelRecord:
    """Return the manifest's record of a language model; RequestError where `model` is not one."""
    record = model.manifest.model
    if record is None:
        raise RequestError(
            f"{model.path}: not a language model: it has no sequences; "
            f"call its functions ({', '.join(model.functions) or 'none'})"
        )
    return record


def page_bytes(record: ModelRecord) -> tuple[int, ...]:
    """Return the bytes of a page of each kind, summed over all devices."""
    return tuple(record.devices * _bytes(_page(record, kind)) for kind in range(len(record.pages)))


@dataclass
class _Memory:
    """`count` items (pages, or states of sequences) of type `item` on a device.

    `view`: a HalBufferView [count, *item]. `under`: the memory of the view that must be kept alive,
    see arrays.zeros.
    """

    device: Any
    item: TensorType
    count: int
    view: Any
    under: Any

    @property
    def bytes(self) -> int:
        """Bytes per item."""
        return _bytes(self.item)


class PagedSteps:
    """A StepModel over an artifact, with `pages[kind]` pages of each kind and `states` slots."""

    def __init__(self, model: Model, pages: Sequence[int], states: int) -> None:
        """Raises RequestError where `model` is not a language model, or memory is insufficient."""
        record = language_model(model)
        self._model = model
        self._record = record
        self._lock = threading.Lock()
        self.page_size = record.page_size
        self.vocabulary = record.vocab_size
        self.context = record.max_sequence_length
        self.rows = record.rows
        self.states = states if record.states else 0
        # One list per device, in the order of the program's arguments.
        self._pools = [
            [self._allocate(device, _page(record, kind), count) for kind, count in enumerate(pages)]
            for device in model.devices
        ]
        self._states = [
            [self._allocate(device, kind, states) for kind in record.states.values()]
            for device in model.devices
        ]
        self.kinds = tuple(
            PageKind(window=kind.window, pages=count)
            for kind, count in zip(record.pages, pages, strict=True)
        )

    def step(self, plan: StepPlan) -> NDArray[np.float32]:
        """See StepModel."""
        wrong = misfit(plan, self)
        if wrong is not None:
            raise RequestError(f"{self._model.path}: no step of the model: {wrong}")
        return self.compute(plan)

    def compute(self, plan: StepPlan) -> NDArray[np.float32]:
        """`step` without checks: for checked tokens, and pages that a PageStore allocated."""
        with self._lock:
            results = self._model.invoke(STEP, self.arguments(plan))
            devices = self._model.devices
            for each, view in zip(self._memory, results[len(devices) :], strict=True):
                each.view = view
        logits = [
            arrays.to_host(device, each, "f32")
            for device, each in zip(devices, results, strict=False)
        ]
        return logits[0] if len(logits) == 1 else np.concatenate(logits, axis=1)

    def arguments(self, plan: StepPlan) -> list[Any]:
        """Return the arguments of the program's `step`: HalBufferViews, pools and states last."""
        given = [array for array, _ in inputs(plan, self._record)]
        device = self._model.device
        return [
            *(arrays.to_device(device, array, "i32") for array in given),
            *(each.view for each in self._memory),
        ]

    def copy_pages(self, kind: int, source: Integers, target: Integers) -> None:
        """See StepModel."""
        with self._lock:
            for pools in self._pools:
                pairs = list(zip(source.tolist(), target.tolist(), strict=True))
                self._copy(pools[kind], pools[kind], pairs)

    def copy_state(self, source: int, target: int) -> None:
        """See StepModel."""
        with self._lock:
            for each in chain.from_iterable(self._states):
                self._copy(each, each, [(source, target)])

    def read_pages(self, kind: int, pages: Integers) -> arrays.Array:
        """Return a copy of some pages of a kind: [len(pages), E, B, V, D], see PageRecord.stored.

        V counts the heads of all devices, where the heads are divided among devices.
        """
        return np.concatenate([self._read(pools[kind], pages) for pools in self._pools], axis=-2)

    def read_state(self, slot: int) -> dict[str, NDArray[np.float32]]:
        """Copies of the states of a sequence, by name: [L, ..]; of several devices the heads of
        each, by `device.0.` and its name."""
        slots = np.array([slot], np.int32)
        several = len(self._states) > 1
        return {
            f"device.{number}.{name}" if several else name: self._read(memory, slots)[0]
            for number, own in enumerate(self._states)
            for name, memory in zip(self._record.states, own, strict=True)
        }

    def grow(self, pages: Sequence[int], states: int, used: Sequence[Sequence[int]]) -> None:
        """Grow to `pages[kind]` pages of each kind and `states` slots, no fewer than before.

        used: for each kind, the pages whose contents are kept; all states are kept. Raises
        RequestError, and changes nothing, where memory is insufficient.
        """
        with self._lock:
            grown = [
                [
                    self._grown(pool, count, held)
                    for pool, count, held in zip(pools, pages, used, strict=True)
                ]
                for pools in self._pools
            ]
            slots = [
                [self._grown(each, states, range(each.count)) for each in own]
                for own in self._states
            ]
            self._pools, self._states = grown, slots
            if self._record.states:
                self.states = states
            self.kinds = tuple(
                replace(kind, pages=count) for kind, count in zip(self.kinds, pages, strict=True)
            )

    @property
    def _memory(self) -> list[_Memory]:
        devices = zip(self._pools, self._states, strict=True)
        return [each for pools, states in devices for each in (*pools, *states)]

    def _grown(self, old: _Memory, count: int, used: Sequence[int]) -> _Memory:
        if count == old.count:
            return old
        new = self._allocate(old.device, old.item, count)
        self._copy(old, new, [(each, each) for each in used])
        return new

    def _allocate(self, device: Any, item: TensorType, count: int) -> _Memory:
        model = self._model
        whole = TensorType(shape=(count, *item.shape), dtype=item.dtype)
        try:
            view, under = arrays.zeros(device, whole, lazily=model.runs_on_cpu)
        except (MemoryError, RuntimeError) as error:
            raise RequestError(
                f"{model.path}: no memory for {count} of {_bytes(item)} bytes of keys, values and "
                f"states ({' '.join(str(error).split())[:200]}); use fewer or shorter sequences"
            ) from error
        return _Memory(device, item, count, view, under)

    def _copy(self, source: _Memory, target: _Memory, pairs: list[tuple[int, int]]) -> None:
        size = source.bytes
        ranges = [(size * start, size * end, size) for start, end in pairs]
        arrays.copy_ranges(source.device, source.view, target.view, ranges)

    def _read(self, memory: _Memory, items: Integers) -> arrays.Array:
        target = self._allocate(memory.device, memory.item, len(items))
        with self._lock:
            self._copy(memory, target, list(zip(items.tolist(), range(len(items)), strict=True)))
        return arrays.to_host(memory.device, target.view, memory.item.dtype)


def inputs(plan: StepPlan, record: ModelRecord) -> list[tuple[Integers, str]]:
    """Return the arrays of a plan and their names, in the order of the arguments of `step`."""
    found = [
        (plan.tokens, "tokens"),
        (plan.positions, "positions"),
        (plan.runs, "runs"),
        (plan.rows, "rows"),
    ]
    for slots, pages in zip(plan.slots, plan.pages, strict=True):
        found += [(slots, "slots"), (pages, "lists")]
    if record.states:
        found.append((plan.states, "places"))
    return [(np.ascontiguousarray(array), name) for array, name in found]


def _page(record: ModelRecord, kind: int) -> TensorType:
    return record.pages[kind].stored.stored


def _bytes(kind: TensorType) -> int:
    return prod(kind.shape) * arrays.DTYPES[kind.dtype].itemsize
