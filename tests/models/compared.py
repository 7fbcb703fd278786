"""An artifact beside transformers' model of the same numbers: logits, and the tokens chosen.

A sequence is a prompt and what our program generates after it, token by token. One pass of the
reference over the whole sequence has what every check wants: logits at each position, and the token
that it would choose there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

import mxc
from mxc.compiler.artifact import Artifact
from mxc.runtime import Model

#: Tokens of a prompt, and of what is generated after it: more than one page together.
PROMPT, GENERATED = 23, 64

#: Share of the root mean square of all logits of transformers in float64, or so many times what
#: it loses in float32.
TOLERANCE, ROUNDING = 2e-5, 3


class Reference(Protocol):
    """transformers' model, whose sequences have tokens below `vocabulary`."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens, without those that stand for something else than text."""

    def logits(self, tokens: list[int], dtype: torch.dtype) -> NDArray[np.float64]:
        """What follows each token [length, all tokens]."""


def compile_small(
    checkpoint: Path, artifact: Path, target: str = "cpu", **options: Any
) -> Artifact:
    """Compile for this CPU, without a second code generation for the report."""
    return mxc.compile(
        checkpoint,
        target,
        artifact,
        activations="f32",
        max_sequence_length=PROMPT + GENERATED,
        listing=False,
        **options,
    )


@dataclass(frozen=True)
class Built:
    """A checkpoint's artifact, and what the reference wants of it."""

    artifact: Path
    oracle: Reference

    @cached_property
    def model(self) -> Model:
        return mxc.load(self.artifact)

    @cached_property
    def generated(self) -> tuple[list[int], NDArray[np.float32]]:
        """A prompt and what is chosen after it, and the logits of each token, one a call."""
        random, sequence = np.random.default_rng(0), self.model.sequence()
        tokens = [int(each) for each in random.integers(0, self.oracle.vocabulary, PROMPT)]
        rows: list[NDArray[np.float32]] = []
        for place in range(PROMPT + GENERATED):
            if place >= PROMPT:
                tokens.append(int(self.chosen(rows[-1])[0]))
            rows.append(sequence.feed([tokens[place]]))
        return tokens, np.concatenate(rows)

    @property
    def tokens(self) -> list[int]:
        return self.generated[0]

    @cached_property
    def wanted(self) -> NDArray[np.float64]:
        """Logits of transformers in float64."""
        return self.oracle.logits(self.tokens, torch.float64)

    @cached_property
    def tolerance(self) -> float:
        """What logits may deviate."""
        rounded = self.oracle.logits(self.tokens, torch.float32).astype(np.float32)
        return max(TOLERANCE, ROUNDING * self.deviation(rounded, slice(None)))

    def chosen(self, logits: NDArray[Any]) -> NDArray[np.intp]:
        """The token that each row [number, all tokens] makes likeliest."""
        return logits[:, : self.oracle.vocabulary].argmax(-1)

    def check_generated(self) -> None:
        """Logits of each token, and the choice of each that was generated, are the reference's."""
        tokens, rows = self.generated
        self.check(rows)
        assert self.chosen(self.wanted)[PROMPT - 1 : -1].tolist() == tokens[PROMPT:]

    def check_cut(self) -> None:
        """Two sequences, fed in pieces, then decoded together."""
        starts = (3, 20)
        sequences = [self.model.sequence() for _ in starts]
        for sequence, start in zip(sequences, starts, strict=True):
            for first, last in ((0, start // 2), (start // 2, start)):
                self.check(sequence.feed(self.tokens[first:last]), slice(first, last))
        batch = self.model.batch()
        for step in range(4):
            places = [start + step for start in starts]
            rows = batch.feed(sequences, [self.tokens[place] for place in places])
            self.check(rows, places)

    def check_fork(self) -> None:
        """Both go on as one would, past the window, in decode and over prompts; each has pages and
        states of its own, which a reset forgets."""
        sequence, other, again = (self.model.sequence() for _ in range(3))
        sequence.feed(self.tokens[:13])
        other = sequence.fork()
        other.feed([5, 4, 3])
        for first, last in ((13, 14), (14, len(self.tokens))):
            self.check(sequence.feed(self.tokens[first:last]), slice(first, last))
        again.feed([*self.tokens[:13], 5, 4, 3])
        assert np.array_equal(other.feed([7]), again.feed([7]))
        again.reset()
        self.check(again.feed(self.tokens))

    def deviation(self, found: NDArray[np.float32], rows: Sequence[int] | slice) -> float:
        """The largest difference of logits, in units of the root mean square of what is wanted."""
        wanted = self.wanted[rows]
        assert found.shape == wanted.shape
        return float(np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)))

    def check(self, found: NDArray[np.float32], rows: Sequence[int] | slice = slice(None)) -> None:
        """These are the logits of these positions."""
        assert self.deviation(found, rows) <= self.tolerance
