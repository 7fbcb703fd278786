"""Log-probabilities of a completion's tokens, in the lists of OpenAI's completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxc.runtime.engine.request import SampledToken
from mxc.server.served import ServedModel

#: JSON has no infinity: this stands for a probability of 0.
_IMPOSSIBLE = -9999.0


class CompletionLogprobs:
    """Lists the tokens of one completion, in their order, with the places of their text."""

    def __init__(self, served: ServedModel) -> None:
        """Start at the beginning of a completion."""
        self._served = served
        self._decoder = served.model.text.decoder()
        self._offset = 0

    def take(self, drawn: Sequence[SampledToken], end: int) -> dict[str, Any]:
        """Return the lists of the next tokens.

        end: length of the text, which ends before a stop string; no place is behind it.
        """
        offsets = []
        for each in drawn:
            offsets.append(min(self._offset, end))
            self._pass(each.token)
        return {
            "tokens": [self._name(each.token) for each in drawn],
            "token_logprobs": [_finite(each.logprob or 0.0) for each in drawn],
            "top_logprobs": [self._top(each) for each in drawn],
            "text_offset": offsets,
        }

    def _pass(self, token: int) -> None:
        """Move behind the text that `token` completes."""
        if token in self._served.model.ends:
            self._offset += len(self._decoder.finish())
            self._decoder = self._served.model.text.decoder()
        else:
            self._offset += len(self._decoder.push(token))

    def _top(self, drawn: SampledToken) -> dict[str, float]:
        """Return the likeliest tokens and the drawn one; of tokens with one name, others by id."""
        names = {self._name(drawn.token): drawn.token}
        for token, _ in drawn.top:
            names.setdefault(self._name(token), token)
        found = {}
        for token, value in (*drawn.top, (drawn.token, drawn.logprob or 0.0)):
            name = self._name(token)
            found[name if names[name] == token else f"token_id:{token}"] = _finite(value)
        return found

    def _name(self, token: int) -> str:
        """Return the text of a token, or its bytes where they are no whole characters."""
        data = self._served.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, _IMPOSSIBLE)
