"""The quantization that a checkpoint's config declares, resolved for a single layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mxc.compiler.checkpoints.canonical.tensor import UNSTATED
from mxc.compiler.checkpoints.layers.patterns import FUSED, Patterns, Syntax
from mxc.errors import CheckpointError

__all__ = ["ActivationFormat", "CheckpointQuantization", "Rule", "Scheme", "Syntax", "excluding"]


@dataclass(frozen=True, kw_only=True)
class ActivationFormat:
    """The declared quantization of activations before they are multiplied by a weight.

    `format` and `recipe` are as in CanonicalTensor; `dynamic` is False for a scale in the file.
    """

    format: str
    recipe: str = UNSTATED
    dynamic: bool = True


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The declared format of a layer's weights, and of its activations (None: not quantized).

    `block`: rows and elements of a row that share a scale, if the config has it. `packing`: the
    dialect's name for the layout of the bytes, if it has several.
    """

    format: str
    recipe: str = UNSTATED
    activations: ActivationFormat | None = None
    block: tuple[int, int] | None = None
    packing: str = ""
    stated_in: str = ""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Layers that match `pattern` have `scheme`; None means not quantized."""

    pattern: str
    syntax: Syntax
    scheme: Scheme | None


@dataclass(frozen=True, kw_only=True)
class CheckpointQuantization:
    """The declarations of a checkpoint: the first of `rules` that matches a layer, else `default`.

    `method` is the dialect's name for itself, or "none". `excluded` are the patterns of layers that
    are not quantized, as in the config. `cache` is the quantization of cached keys and values; None
    if nothing is declared.
    """

    method: str = "none"
    default: Scheme | None = None
    rules: tuple[Rule, ...] = ()
    excluded: tuple[str, ...] = ()
    cache: ActivationFormat | None = None

    def scheme(self, module: str) -> Scheme | None:
        """Return the declared scheme of a layer; None if there is none.

        Raises CheckpointError for a layer stored fused of which some parts are excluded and others
        not.
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

    def activations(self, module: str) -> ActivationFormat | None:
        """Return the declared quantization of a layer's activations; None if there is none."""
        scheme = self.scheme(module)
        return None if scheme is None else scheme.activations

    def _plain(self, module: str) -> Scheme | None:
        place = self._patterns.first(module)
        return self.default if place is None else self.rules[place].scheme

    @cached_property
    def _patterns(self) -> Patterns:
        return Patterns([(rule.pattern, rule.syntax) for rule in self.rules])


def excluding(patterns: list[str], syntax: Syntax) -> tuple[Rule, ...]:
    """Return rules for layers that are not quantized."""
    return tuple(Rule(pattern=p, syntax=syntax, scheme=None) for p in patterns)
