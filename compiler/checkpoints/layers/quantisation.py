"""What a checkpoint's config says of quantisation, resolved to the single layer.

Dialects write exclusions in four syntaxes, and under names that need not be those of the tensors:
with the prefix of a wrapper that the file lacks, or without one that it has, and with the names
of layers before or after they were fused. Every spelling is tried.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache

from mxc.compiler.checkpoints.canonical.tensor import UNSTATED
from mxc.dialects.errors import CheckpointError

#: What a wrapper model puts before the names of the language model inside it.
WRAPPERS = ("model.language_model.", "language_model.model.", "language_model.", "model.")

#: Layers that some dialects store, or name in exclusions, as one: the fused name and its parts.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "w13": ("w1", "w3"),
}

#: The longest pattern, and the longest regular expression, that is tried.
_LONGEST = 1000
_REPETITIONS = 6


class Syntax(Enum):
    """How the patterns of a list are written."""

    #: A name; or a regular expression after "re:", matched from the start (compressed-tensors).
    REGEX = "re: prefix"
    #: With *, ? and [..] as in file names (Quark, modelopt).
    GLOB = "glob"
    #: A name, of the layer or of what holds it, or its end; * is any text (transformers).
    PREFIX = "prefix"


@dataclass(frozen=True, kw_only=True)
class Activations:
    """What activations are quantised to before they meet a weight, as the config says.

    `format` and `recipe` as in CanonicalTensor; `dynamic` is False for a scale in the file.
    """

    format: str
    recipe: str = UNSTATED
    dynamic: bool = True


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How the weights of a layer are declared to be, and its activations; None: as they are.

    `packing` is the dialect's own word for how their bytes lie, where it has several ways.
    """

    format: str
    recipe: str = UNSTATED
    activations: Activations | None = None
    packing: str = ""
    stated_in: str = ""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Layers that `pattern` names have `scheme`; None: they are not quantised."""

    pattern: str
    syntax: Syntax
    scheme: Scheme | None

    def matches(self, module: str) -> bool:
        """Whether the pattern names `module` ("model.layers.0.mlp.down_proj") in some spelling."""
        return any(_matches(self.pattern, self.syntax, name) for name in spellings(module))


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """The declarations of a checkpoint: the first of `rules` that names a layer, else `default`.

    `method` is the dialect's own word for itself, "none" where there is none. `excluded` are the
    patterns of layers that stay as they are, as the config writes them.
    """

    method: str = "none"
    default: Scheme | None = None
    rules: tuple[Rule, ...] = ()
    excluded: tuple[str, ...] = ()

    def scheme(self, module: str) -> Scheme | None:
        """What is declared for a layer; None: nothing.

        A layer that is stored fused has one scheme only if all its parts have: else
        CheckpointError.
        """
        for rule in self.rules:
            if rule.matches(module):
                return rule.scheme
        stem, _, last = module.rpartition(".")
        parts = FUSED.get(last, ())
        found = {self._plain(f"{stem}.{part}" if stem else part) for part in parts}
        if len(found) > 1:
            raise CheckpointError(
                f"the quantisation config excludes some of the parts of {module} "
                f"({', '.join(parts)}) and not the others, but they are stored as one tensor; "
                "correct the list of exclusions"
            )
        return next(iter(found), self.default)

    def activations(self, module: str) -> Activations | None:
        """What is declared for the activations of a layer; None: they stay as they are."""
        scheme = self.scheme(module)
        return None if scheme is None else scheme.activations

    def _plain(self, module: str) -> Scheme | None:
        return next((r.scheme for r in self.rules if r.matches(module)), self.default)


def excluding(patterns: list[str], syntax: Syntax) -> tuple[Rule, ...]:
    """Rules for layers that are not quantised."""
    return tuple(Rule(pattern=p, syntax=syntax, scheme=None) for p in patterns)


def spellings(module: str) -> Iterator[str]:
    """The names that a config may have for a layer: wrapped, unwrapped, fused."""
    stem, _, last = module.rpartition(".")
    lasts = [last, *(whole for whole, parts in FUSED.items() if last in parts)]
    bare = _bare(module)
    stem = bare.rpartition(".")[0]
    yield module
    for last in lasts:
        name = f"{stem}.{last}" if stem else last
        yield name
        for wrapper in WRAPPERS:
            yield wrapper + name
        yield f"language_model.model.{name}"


def _bare(module: str) -> str:
    for wrapper in (*WRAPPERS, "model.language_model.model."):
        if module.startswith(wrapper):
            return module.removeprefix(wrapper)
    return module


def _matches(pattern: str, syntax: Syntax, name: str) -> bool:
    if syntax is Syntax.REGEX:
        if not pattern.startswith("re:"):
            return pattern == name
        return _regex(pattern[3:]).match(name) is not None
    if syntax is Syntax.GLOB:
        return fnmatch.fnmatchcase(name, pattern)
    # Only * is special; fnmatch takes time that does not explode with their number.
    glob = pattern.replace("[", "[[]").replace("?", "[?]")
    ends = [*(i for i, letter in enumerate(name) if letter == "."), len(name)]
    if any(fnmatch.fnmatchcase(name[:end], glob) for end in ends):
        return True
    return name.endswith(f".{pattern}")


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    # Nested repetitions can take time exponential in the name, many a high power of it; no list
    # of layers needs them.
    nested = re.search(r"[*+}]\)?[*+{]|\([^()]*[*+][^()]*\)[*+{]", pattern)
    if nested or len(pattern) > _LONGEST or len(re.findall(r"[*+{]", pattern)) > _REPETITIONS:
        raise CheckpointError(
            f"the quantisation config has the pattern {pattern[:80]!r}, whose repetitions are "
            "nested or many, or which is too long; write out the names instead"
        )
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"the quantisation config has the pattern {pattern[:80]!r}, which is no regular "
            f"expression ({error}); correct it"
        ) from error
