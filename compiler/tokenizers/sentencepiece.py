"""Builds a tokenizer from a sentencepiece vocabulary: pieces merged by score, and byte tokens.

GGUF calls it "llama". Spaces are U+2581; one is put before the text and after each control token. A
character without a piece becomes the tokens of its UTF-8 bytes. Among adjacent pieces, the pair
whose merged piece has the best score is merged first. In `tokenizers` this is BPE with merges in
the order of the scores of the merged pieces. Source: llama.cpp src/llama-vocab.cpp
(llm_tokenizer_spm), and transformers 5.23, whose tokenizers of the same vocabulary the tests
compare with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers

from mxc.errors import CheckpointError

SPACE = "\u2581"

#: Token types of GGUF.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

#: Longest accepted piece; no vocabulary has longer ones, and splitting takes quadratic time.
_LONGEST = 256


def tokenizer(
    words: Sequence[str],
    scores: Sequence[float] | NDArray[np.float32],
    types: Sequence[int],
    *,
    space_before: bool,
    place: str,
) -> Tokenizer:
    """Return the tokenizer of a vocabulary. Raises CheckpointError for pieces that are too long."""
    numbers = {word: number for number, word in enumerate(words)}
    pieces = {
        word: float(score)
        for word, score, kind in zip(words, scores, types, strict=True)
        if kind in (NORMAL, USER_DEFINED)
    }
    unknown = next((word for word, kind in zip(words, types, strict=True) if kind == UNKNOWN), None)
    made = Tokenizer(
        models.BPE(
            numbers,
            _merges(numbers, pieces, place),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=any(kind == BYTE for kind in types),
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    before = [normalizers.Prepend(SPACE)] if space_before else []
    made.normalizer = normalizers.Sequence([*before, spaces])
    after = [decoders.Strip(" ", 1, 0)] if space_before else []
    made.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return made


def scores_of(numbers: dict[str, int], merges: Sequence[tuple[str, str]]) -> list[float] | None:
    """Return the score of each token by its number such that `tokenizer` reproduces the merges.

    None if no scores do so: merges that make the same piece have to be adjacent.
    """
    first: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        first.setdefault(left + right, rank)
    scores = [-float(len(merges) + 1)] * len(numbers)
    for piece, rank in first.items():
        if piece not in numbers:
            return None
        scores[numbers[piece]] = -float(rank)
    pieces = {piece: scores[numbers[piece]] for piece in first}
    wanted = _merges(numbers, pieces, "tokenizer.json")
    # The order of merges that make the same piece does not matter: their scores are equal.
    made = [left + right for left, right in merges]
    if [left + right for left, right in wanted] != made or {*wanted} != {*merges}:
        return None
    return scores


def _merges(numbers: dict[str, int], pieces: dict[str, float], place: str) -> list[tuple[str, str]]:
    """Return every pair of tokens that makes a piece, in the order of the scores of the pieces."""
    found: list[tuple[str, str]] = []
    for piece in pieces:
        if len(piece) > _LONGEST:
            raise CheckpointError(
                f"{place}: a token has {len(piece)} letters, at most {_LONGEST} are read; the file "
                "is damaged: fetch it again"
            )
        cuts = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        pairs = [pair for pair in cuts if pair[0] in numbers and pair[1] in numbers]
        found += sorted(pairs, key=lambda pair: (numbers[pair[0]], numbers[pair[1]]))
    # Among merges that make the same piece, transformers puts the longest left part first.
    return sorted(found, key=lambda pair: (-pieces[pair[0] + pair[1]], -len(pair[0])))
