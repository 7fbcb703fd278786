"""Matching of the tensors of two checkpoints that are the same parameter under any names and
stacking.

Names are converted to those of transformers' modules. Tensors that are stacked or fused in only one
checkpoint are split on both sides: all experts of a layer, and their gate and up projections.
Tensors that repeat the config (the rotary divisors of a GGUF) are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mxc.compiler.checkpoints.canonical.slices import half_of, leading_slice
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.models.configs.gguf_rope import DIVISORS

Tensors = Mapping[str, CanonicalTensor]

#: Patterns in published names, and the replacements in transformers' modules.
_NAMES = (
    (re.compile(r"\.block_sparse_moe\."), ".mlp."),
    (re.compile(r"(\.experts\.\d+)\.w1\."), r"\1.gate_proj."),
    (re.compile(r"(\.experts\.\d+)\.w2\."), r"\1.down_proj."),
    (re.compile(r"(\.experts\.\d+)\.w3\."), r"\1.up_proj."),
)
#: Names of a projection of all experts in one tensor, and of gate and up of one expert in one.
_STACKED = re.compile(
    r"(?P<stem>.*\.experts)\.(?P<projection>(gate_up|gate|up|down)_proj)(?P<bias>_bias)?"
)
_FUSED = re.compile(r"(?P<stem>.*\.experts\.\d+)\.gate_up_proj\.(?P<kind>weight|bias)")


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Pairs of tensors that are the same parameter, and the names that only one checkpoint has."""

    both: tuple[tuple[CanonicalTensor, CanonicalTensor], ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]


def pairs(first: CheckpointSource, second: CheckpointSource, name: str | None = None) -> Pairs:
    """Return the parameters of two checkpoints, or those in the tensor `name` of either.

    Raises CheckpointError for a name that neither has, or of which one lacks a part.
    """
    interleaved = any(_interleaves(source) for source in (first, second))
    sides = [_module_names(source) for source in (first, second)]
    if name is not None:
        return _named(first, second, sides, name, interleaved)
    common = [each for each in sides[0] if each in sides[1]]
    parts = [
        _apart({n: t for n, t in side.items() if n not in common}, interleaved) for side in sides
    ]
    both = [(sides[0][n], sides[1][n]) for n in common]
    both += [(parts[0][n], parts[1][n]) for n in parts[0] if n in parts[1]]
    left, right = (tuple(sorted(set(a) - set(b))) for a, b in (parts, parts[::-1]))
    return Pairs(both=tuple(both), only=(left, right))


def _named(
    first: CheckpointSource,
    second: CheckpointSource,
    sides: list[Tensors],
    name: str,
    interleaved: bool,
) -> Pairs:
    meant = _module_name(name)
    if all(meant in side for side in sides):
        return Pairs(both=((sides[0][meant], sides[1][meant]),), only=((), ()))
    parts = [_apart(side, interleaved) for side in sides]
    held = {meant} if all(meant in part for part in parts) else set[str]()
    for side in sides:
        if meant in side:
            held |= set(_apart({meant: side[meant]}, interleaved))
    for source, part in zip((first, second), parts, strict=True):
        if not held or not held <= set(part):
            source.tensor(name)  # raises with the closest names
    return Pairs(both=tuple((parts[0][n], parts[1][n]) for n in sorted(held)), only=((), ()))


def _interleaves(source: CheckpointSource) -> bool:
    """Return whether the rows of gate and up of an expert alternate, as in gpt-oss."""
    kind = source.config.get("model_type"), source.config.get("general.architecture")
    return "gpt_oss" in kind or "gpt-oss" in kind


def _module_name(name: str) -> str:
    for pattern, module in _NAMES:
        name = pattern.sub(module, name)
    return name


def _module_names(source: CheckpointSource) -> Tensors:
    return {_module_name(name): t for name, t in source.tensors.items() if name != DIVISORS}


def _apart(tensors: Tensors, interleaved: bool) -> dict[str, CanonicalTensor]:
    """Return every expert and every projection as a tensor of its own."""
    each: dict[str, CanonicalTensor] = {}
    for name, tensor in tensors.items():
        if (found := _STACKED.fullmatch(name)) and 0 not in tensor.shape:
            kind = "bias" if found["bias"] else "weight"
            for expert in range(tensor.shape[0]):
                part = f"{found['stem']}.{expert}.{found['projection']}.{kind}"
                each[part] = leading_slice(tensor, expert)
        else:
            each[name] = tensor
    parts: dict[str, CanonicalTensor] = {}
    for name, tensor in each.items():
        if found := _FUSED.fullmatch(name):
            for half, projection in enumerate(("gate_proj", "up_proj")):
                part = f"{found['stem']}.{projection}.{found['kind']}"
                parts[part] = half_of(tensor, half, interleaved)
        else:
            parts[name] = tensor
    return {name: tensor.renamed(name) for name, tensor in parts.items()}
