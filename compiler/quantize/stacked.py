"""Splits experts that are stacked in one tensor into weights of their own, as most dialects need.

  experts.gate_up_proj [E, 2 I, H]  ->  experts.0.gate_proj.weight [I, H], experts.0.up_proj, ..
  experts.gate_up_proj [E, H, 2 I]  ->  the same, transposed

The name does not tell which axis is summed over. gpt-oss is known to have [E, in, out]; for other
models the sizes of a layer's projections decide. Gate precedes up, except in gpt-oss, where their
rows alternate. Source: transformers 5.23 (integrations/moe.py and its uses).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from mxc.compiler.checkpoints.canonical.slices import half_of, leading_slice
from mxc.compiler.checkpoints.canonical.stored import Decoded
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, plain
from mxc.compiler.checkpoints.files.tensors import (
    DTYPES,
    Checkpoint,
    TensorRecord,
    read_bytes,
)
from mxc.compiler.checkpoints.layers.experts import is_transposed, transposed_part
from mxc.errors import CheckpointError

_STACK = re.compile(
    r"(?P<stem>.*\bexperts)\.(?P<projection>(gate_up|gate|up|down)_proj)(?P<weight>\.weight)?"
)

#: Keys in config.json of the config of a language model inside a larger model.
_HOLDERS = ("text_config", "language_config", "llm_config")

#: A tensor to write, and a reader of its bytes.
Part = tuple[TensorRecord, Decoded]


def is_stack(record: TensorRecord) -> bool:
    """Return whether a tensor holds a projection of all experts of a layer."""
    return len(record.shape) == 3 and _STACK.fullmatch(record.name) is not None


def inputs_first(record: TensorRecord, checkpoint: Checkpoint) -> bool:
    """Return whether the experts of a stack are [in, out] (otherwise [out, in]).

    Raises CheckpointError if neither the architecture nor the sizes decide.
    """
    found = _STACK.fullmatch(record.name)
    if is_transposed(record.name, checkpoint.config):
        return True
    if found is not None:
        stem, ending = found["stem"], found["weight"] or ""
        both = [
            checkpoint.tensors.get(f"{stem}.{n}{ending}") for n in ("gate_up_proj", "down_proj")
        ]
        if both[0] is not None and both[1] is not None:
            # At most one of the pairs [2 I, H], [H, I] and [H, 2 I], [I, H] fits.
            (a, b), (c, d) = (each.shape[-2:] for each in both if each is not None)
            if (b == c and a == 2 * d) != (a == d and b == 2 * c):
                return a == d and b == 2 * c
        hidden = _hidden(checkpoint)
        first, second = record.shape[1:]
        if (first == hidden) != (second == hidden):
            return (first == hidden) != (found["projection"] == "down_proj")
    raise CheckpointError(
        f"{record.file}: tensor {record.name} {list(record.shape)} holds all experts of a layer, "
        "and neither the architecture nor the sizes of config.json tell which axis products sum "
        "over; leave it out with --exclude"
    )


def _hidden(checkpoint: Checkpoint) -> object:
    config = checkpoint.config
    holders = [config, *(config.get(name) for name in _HOLDERS)]
    found = {h["hidden_size"] for h in holders if isinstance(h, dict) and "hidden_size" in h}
    return found.pop() if len(found) == 1 else None


def experts(record: TensorRecord, checkpoint: Checkpoint, *, fused: bool) -> Iterator[Part]:
    """Yield the weights of a stack, [out, in] each, and their biases if the checkpoint has some.

    `fused`: gate and up stay one weight. Raises CheckpointError as inputs_first, and for gate and
    up if the architecture is not known.
    """
    found = _STACK.fullmatch(record.name)
    if found is None:
        raise AssertionError(f"{record.name} is no stack")
    if found["projection"] == "gate_up_proj" and "model_type" not in checkpoint.config:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} {list(record.shape)} holds gate and up of all "
            "experts, and without a model_type in config.json their order is not known; give the "
            "folder of the model, or leave the tensor out with --exclude"
        )
    weight = plain(record)
    if inputs_first(record, checkpoint):
        count, depth, outputs = record.shape
        shape = (count, outputs, depth)
        weight = replace(weight, shape=shape, elements=transposed_part(record, shape, record.dtype))
    yield from _each(weight, found, "weight", checkpoint, fused=fused)
    bias = biases_of(record, checkpoint)
    if bias is not None:
        yield from _each(plain(bias), found, "bias", checkpoint, fused=fused)


def biases_of(record: TensorRecord, checkpoint: Checkpoint) -> TensorRecord | None:
    """Return the tensor of the biases that belong to a stack, or None."""
    return checkpoint.tensors.get(f"{record.name.removesuffix('.weight')}_bias")


def _each(
    tensor: CanonicalTensor,
    name: re.Match[str],
    kind: str,
    checkpoint: Checkpoint,
    *,
    fused: bool,
) -> Iterator[Part]:
    interleaved = checkpoint.config.get("model_type") == "gpt_oss"
    for number in range(tensor.shape[0]):
        stem, projection = f"{name['stem']}.{number}", name["projection"]
        one = leading_slice(tensor, number)
        if fused or projection != "gate_up_proj":
            yield _part(one, f"{stem}.{projection}.{kind}")
            continue
        for half, part in enumerate(("gate_proj", "up_proj")):
            yield _part(half_of(one, half, interleaved), f"{stem}.{part}.{kind}")


def _part(tensor: CanonicalTensor, name: str) -> Part:
    size = prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
    record = replace(tensor.elements.record, name=name, shape=tensor.shape, offset=0, bytes=size)
    return record, tensor.elements.reader(read_bytes)
