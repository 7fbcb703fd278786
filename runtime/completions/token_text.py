"""The bytes of one token, which need not be whole characters."""

from __future__ import annotations

import json
import re
from functools import cache

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Maps token ids to bytes, for lists of log-probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Detect how the tokenizer writes bytes: in the byte-level BPE alphabet, or as <0x0A>."""
        self._tokenizer = tokenizer
        decoder = json.dumps(json.loads(tokenizer.to_str()).get("decoder") or {})
        self._byte_level = '"ByteLevel"' in decoder
        self._added = {
            number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()
        }

    def __call__(self, token: int) -> bytes:
        """Return the bytes of `token`; empty for an id that the tokenizer does not know."""
        piece: str | None = self._added.get(token)
        if piece is not None:
            return piece.encode()
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            alphabet = _alphabet()
            if all(character in alphabet for character in piece):
                return bytes(alphabet[character] for character in piece)
        found = _BYTE.fullmatch(piece)
        if found:
            return bytes([int(found[1], 16)])
        return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


@cache
def _alphabet() -> dict[str, int]:
    """Return the byte of each character of byte-level BPE.

    A printable byte is written as itself, the others as characters from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }
