"""The operators of torch's own tests, each with the first samples of several types.

Needs the package expecttest, which torch's tests import.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from frameworks.case import Case, Program

_TYPES = (torch.float32, torch.bfloat16, torch.uint8, torch.int32, torch.bool)
#: Number of samples of each operator and type.
_SAMPLES = 2
#: Type of the first argument -> rtol and atol of the results; 1e-5 for other types.
_BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
#: Parts of the names of operators whose results are random or undefined: they are left out.
_RANDOM = ("bernoulli", "dropout", "empty", "multinomial", "normal_", "rand", "rrelu", "uniform")


def _module(op: Any, leaves: Sequence[Any], tree: Any) -> Any:
    """Return a module that calls `op` on one sample, given its tensors; other values are fixed.

    `leaves` and `tree`: the sample's input, args and kwargs, flattened by pytree.
    """
    fixed = [None if isinstance(each, torch.Tensor) else each for each in leaves]
    places = [place for place, each in enumerate(leaves) if isinstance(each, torch.Tensor)]

    def forward(*tensors: torch.Tensor) -> Any:
        given = list(fixed)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(given, tree)
        return op(first, *args, **kwargs)

    module = torch.nn.Module()
    module.forward = forward
    return module


def cases() -> Iterator[Case]:
    """Yield a case for each operator whose results depend on its arguments only, by name."""
    for op in sorted(op_db, key=lambda op: op.formatted_name):
        if not any(word in op.name for word in _RANDOM):
            yield Case(op.formatted_name, partial(_load, op))


def _load(op: Any) -> Sequence[Program]:
    found = []
    for dtype in _TYPES:
        torch.manual_seed(0)
        samples = op.sample_inputs("cpu", dtype, requires_grad=False) if dtype in op.dtypes else ()
        for number, sample in enumerate(islice(samples, _SAMPLES)):
            kind = str(dtype).removeprefix("torch.")
            made = _program(f"{op.formatted_name} {kind} {number}", op, sample)
            found += [] if made is None else [made]
    return found


def _program(name: str, op: Any, sample: Any) -> Program | None:
    leaves, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors = tuple(each for each in leaves if isinstance(each, torch.Tensor))
    module = _module(op, leaves, tree)
    wanted, _ = pytree.tree_flatten(module(*(each.clone() for each in tensors)))
    if not all(isinstance(each, torch.Tensor) for each in wanted):
        return None
    if any(each.is_complex() or each.dtype == torch.float64 for each in (*tensors, *wanted)):
        return None
    try:
        program = torch.export.export(module, tensors)
    except Exception:  # torch.export does not support the operator
        return None
    bound = _BOUNDS.get(tensors[0].dtype, 1e-5) if tensors else 1e-5
    calls = [(list(map(_array, tensors)), list(map(_array, wanted)))]
    return Program(name, program, calls, bound, bound)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())
