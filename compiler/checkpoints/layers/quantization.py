"""What a checkpoint's config says of quantization, resolved to the single layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mxc.compiler.checkpoints.canonical.tensor import UNSTATED
from mxc.compiler.checkpoints.layers.patterns import FUSED, Patterns, Syntax
from mxc.errors import CheckpointError

__all__ = ["Activations", "Quantization", "Rule", "Scheme", "Syntax", "excluding"]


@dataclass(frozen=True, kw_only=True)
class Activations:
    """What activations are quantized to before they meet a weight, as the config says.

    `format` and `recipe` as in CanonicalTensor; `dynamic` is False for a scale in the file.
    """

    format: str
    recipe: str = UNSTATED
    dynamic: bool = True


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How the weights of a layer are declared to be, and its activations; None: as they are.

    `block`: rows and elements of a row that share a scale, where the config says so. `packing` is
    the dialect's own word for how their bytes lie, where it has several ways.
    """

    format: str
    recipe: str = UNSTATED
    activations: Activations | None = None
    block: tuple[int, int] | None = None
    packing: str = ""
    stated_in: str = ""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Layers that `pattern` names have `scheme`; None: they are not quantized."""

    pattern: str
    syntax: Syntax
    scheme: Scheme | None


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The declarations of a checkpoint: the first of `rules` that names a layer, else `default`.

    `method` is the dialect's own word for itself, "none" where there is none. `excluded` are the
    patterns of layers that stay as they are, as the config writes them. `cache`: what keys and
    values are quantized to in the cache; None: nothing is said of it.
    """

    method: str = "none"
    default: Scheme | None = None
    rules: tuple[Rule, ...] = ()
    excluded: tuple[str, ...] = ()
    cache: Activations | None = None

    def scheme(self, module: str) -> Scheme | None:
        """What is declared for a layer; None: nothing.

        A layer that is stored fused has one scheme only if all its parts have: else
        CheckpointError.
        """
        if (place := self._patterns.first(module)) is not None:
            return self.rules[place].scheme
        stem, _, last = module.rpartition(".")
        parts = FUSED.get(last, ())
        found = {self._plain(f"{stem}.{part}" if stem else part) for part in parts}
        if len(found) > 1:
            raise CheckpointError(
                f"the quantization config excludes some of the parts of {module} "
                f"({', '.join(parts)}) and not the others, but they are stored as one tensor; "
                "correct the list of exclusions"
            )
        return next(iter(found), self.default)

    def activations(self, module: str) -> Activations | None:
        """What is declared for the activations of a layer; None: they stay as they are."""
        scheme = self.scheme(module)
        return None if scheme is None else scheme.activations

    def _plain(self, module: str) -> Scheme | None:
        place = self._patterns.first(module)
        return self.default if place is None else self.rules[place].scheme

    @cached_property
    def _patterns(self) -> Patterns:
        return Patterns([(rule.pattern, rule.syntax) for rule in self.rules])


def excluding(patterns: list[str], syntax: Syntax) -> tuple[Rule, ...]:
    """Rules for layers that are not quantized."""
    return tuple(Rule(pattern=p, syntax=syntax, scheme=None) for p in patterns)
