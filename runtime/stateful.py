"""A function that keeps on the device what it changes: a KV cache, a counter, a donated array."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mxc.errors import RequestError
from mxc.runtime import arrays

if TYPE_CHECKING:
    from mxc.runtime.session import Model


class Stateful:
    """Calls of a function, of which each goes on with the states that the one before has left.

    States are the arguments whose memory is that of a result. A call takes the other arguments and
    returns the other results. Calls from several threads wait for each other.
    """

    def __init__(self, model: Model, name: str, states: Mapping[str, Any]) -> None:
        """Begin with `states`, by name, and zeros; use `Model.stateful` instead."""
        self._model, self._name = model, name
        self._entry = entry = model.entry(name)
        self._lock = threading.Lock()
        function = entry.function
        self._results = dict(function.in_place)
        if not self._results:
            raise RequestError(f"{name}: has no argument that it changes in place; use Model.call")
        names = function.input_names
        #: The numbers of the states among the arguments, by name: "0" for one without a name.
        self._numbers = {
            (names[number] if number < len(names) else "") or str(number): number
            for number in self._results
        }
        if unknown := [each for each in states if each not in self._numbers]:
            raise RequestError(
                f"{name}: has no state {unknown[0]!r}; its states: {', '.join(self._numbers)}"
            )
        self._buffers = {
            number: entry.argument(
                model.device, number, states[key] if key in states else self._zeros(key, number)
            )
            for key, number in self._numbers.items()
        }

    def _zeros(self, state: str, number: int) -> arrays.Array:
        kind = self._entry.function.inputs[number]
        if -1 in kind.shape:
            raise RequestError(
                f"{self._name}: state {state} is {arrays.describe(kind)}; give what it begins "
                "with, which has the sizes of all calls"
            )
        return np.zeros(kind.shape, arrays.dtype_of(kind.dtype, state))

    @property
    def states(self) -> dict[str, arrays.Array]:
        """Copies of the states, by name."""
        with self._lock:
            return {
                name: self._entry.result(
                    self._model.device, self._results[number], self._buffers[number]
                )
                for name, number in self._numbers.items()
            }

    def __call__(self, *values: object) -> tuple[arrays.Array, ...]:
        """Call the function with the arguments that are no states, as `Model.call`."""
        wanted = self._entry.function.inputs
        given = [number for number in range(len(wanted)) if number not in self._results]
        if len(values) != len(given):
            raise RequestError(
                f"{self._name}: takes {len(given)} arguments beside its states "
                f"({', '.join(arrays.describe(wanted[number]) for number in given) or 'none'}), "
                f"got {len(values)}"
            )
        device = self._model.device
        with self._lock:
            arguments = dict(self._buffers)
            for number, value in zip(given, values, strict=True):
                arguments[number] = self._entry.argument(device, number, value)
            results = self._model.invoke(self._name, [arguments[n] for n in range(len(wanted))])
            self._buffers = {number: results[at] for number, at in self._results.items()}
            kept = set(self._results.values())
            return tuple(
                self._entry.result(device, index, value)
                for index, value in enumerate(results)
                if index not in kept
            )
