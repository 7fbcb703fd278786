"""The tokenizer of grammars: special tokens by their ids, and the same text in pieces.

llguidance encodes text that a grammar forces. Where the text looks like a special token, it gets
that token, which its grammar then refuses. So llguidance gets a tokenizer whose special tokens
have names that no text has; a grammar names a special token by its id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from mxc.errors import RequestError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Names of end-of-sequence tokens that llguidance knows; it needs one where none is given.
_KNOWN_ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<eos>")
_TAG = re.compile(r"<(?!0x[0-9A-F]{2}>).*>", re.DOTALL)


class GrammarTokens:
    """The special tokens of a tokenizer, as grammars write them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Find the special tokens; added tokens in the form of a tag are special in grammars."""
        self._tokenizer = tokenizer
        self._ids: dict[str, int] = {
            token.content: number
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.special or _TAG.fullmatch(token.content)
        }

    def write(self, name: str) -> str:
        """Return the symbol of the special token `name`; its text where there is no such token."""
        number = self._ids.get(name)
        return json.dumps(name) if number is None else f"<[{number}]>"

    def has(self, name: str) -> bool:
        """Whether `name` is a special token."""
        return name in self._ids

    def compiler_tokenizer(self, vocabulary: int, ends: Sequence[int]) -> Any:
        """Return llguidance's tokenizer; `ends`: tokens that may end a text.

        Raises RequestError where llguidance cannot use the tokenizer, or is not installed.
        """
        try:
            import llguidance
        except ImportError:
            raise RequestError(
                "grammars for answers need llguidance; pip install 'mxc[serve]'"
            ) from None

        stops = list(ends) or [self._ids[name] for name in _KNOWN_ENDS if name in self._ids][:1]
        renamed = _renamed(self._tokenizer.to_str(), self._ids)
        try:
            return llguidance.LLTokenizer(renamed, n_vocab=vocabulary, eos_token=stops or None)
        except ValueError as error:
            raise RequestError(
                f"the model's tokenizer cannot be used for grammars: {error}"
            ) from error


def _renamed(stored: str, names: Collection[str]) -> str:
    """Return the tokenizer `stored` (JSON) with other names for the tokens `names`."""
    found = json.loads(stored)
    new = {name: f"<\ufdd0{number}>" for number, name in enumerate(names)}
    for token in found["added_tokens"]:
        if token["content"] in new:
            token.update(content=new[token["content"]], special=True)
    model = found["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {new.get(name, name): number for name, number in vocabulary.items()}
    else:  # pairs of a piece and its score
        model["vocab"] = [[new.get(name, name), *rest] for name, *rest in vocabulary]
    if model.get("unk_token") in new:
        model["unk_token"] = new[model["unk_token"]]
    return json.dumps(found)
