"""One sequence of tokens over a loaded model, with a memory of its own: KV cache and states.

Tokens go through `prefill` a chunk of T at a time; what is left goes through one padded chunk or,
where it is short, through single `decode` steps. A padding token writes to the cache behind the
last true token: no true token looks there (attention is causal), and the next one fed overwrites
it, so the cache has T - 1 positions more than the longest sequence. States of linear attention
have no place behind the last token: where a model has some, `prefill` is told how many are true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import ModelRecord
from mxc.errors import RequestError
from mxc.runtime import arrays

if TYPE_CHECKING:
    from mxc.runtime.session import Model


def decoded_tail(chunk: int, on_cpu: bool) -> int:
    """Up to how many last tokens of a prompt are decoded one by one rather than padded to a chunk.

    On CPUs a padded chunk of 128 takes as long as 12 to 14 decoded tokens (gpt-oss-20b on two
    cores: 1.5 s and 0.11 s). On GPUs a chunk costs little more than a token.
    """
    return chunk // 10 if on_cpu else min(chunk // 4, 8)


class Sequence:
    """Tokens fed so far to one model; several sequences over one model do not touch each other."""

    def __init__(self, model: Model) -> None:
        """An empty sequence. Raises RequestError where `model` is not a language model."""
        record = model.manifest.model
        if record is None:
            raise RequestError(
                f"{model.path}: not a language model: it has no sequences; "
                f"call its functions ({', '.join(model.functions) or 'none'})"
            )
        self._model = model
        self._record: ModelRecord = record
        self._position = 0
        self._new_memory()

    def _new_memory(self) -> None:
        device, lazily = self._model.device, self._model.runs_on_cpu
        made = [arrays.zeros(device, each, lazily=lazily) for each in self._record.memory]
        self._memory = [buffer for buffer, _ in made]
        # What is under them is freed with the sequence and not before: see arrays.zeros.
        self._pages = [pages for _, pages in made]

    @property
    def model(self) -> Model:
        """The model that the tokens are fed to."""
        return self._model

    @property
    def position(self) -> int:
        """How many tokens have been fed."""
        return self._position

    @property
    def cache(self) -> Any:
        """The KV cache on the device, an iree.runtime.HalBufferView; the next feed writes to it."""
        return self._memory[0]

    @property
    def memory(self) -> tuple[Any, ...]:
        """All that the next feed writes to: the KV cache, then the states, in their order."""
        return tuple(self._memory)

    @property
    def room(self) -> int:
        """How many more tokens can be fed."""
        return self._record.max_sequence_length - self._position

    def feed(self, tokens: Iterable[int], last_only: bool = False) -> NDArray[np.float32]:
        """Append `tokens`; the logits that follow each of them, float32 [n, vocab_size].

        last_only: only the row after the last token, [1, vocab_size], which saves the other rows'
        multiplications. Raises RequestError, and appends nothing, where there is no token, a token
        is outside of the vocabulary, or the sequence would be longer than its maximum.
        """
        ids = self.checked(tokens)
        rows: list[NDArray[np.float32]] = []
        chunk = self._record.prefill_chunk
        tail = decoded_tail(chunk, self._model.runs_on_cpu)
        for start in range(0, len(ids), chunk):
            piece = ids[start : start + chunk]
            if len(piece) < chunk and len(piece) <= tail:
                rows += [self._decode(token) for token in piece]
                continue
            hidden = self._prefill(piece)
            if not last_only:
                rows.append(self._host("logits", [hidden])[: len(piece)])
            elif start + len(piece) == len(ids):
                rows.append(self._host("logits_row", [hidden, len(piece) - 1]))
        return np.concatenate(rows[-1:] if last_only else rows)

    def reset(self) -> None:
        """Forget all tokens, and the memory: NaN that stayed in it would reach a masked sum."""
        self._position = 0
        self._new_memory()

    def fork(self) -> Sequence:
        """A second sequence that continues from here with its own copy of the memory."""
        other = Sequence.__new__(Sequence)
        other._model = self._model
        other._record = self._record
        other._position = self._position
        other._memory = [arrays.copy(self._model.device, each) for each in self._memory]
        other._pages = []
        return other

    def checked(self, tokens: Iterable[int]) -> NDArray[np.int32]:
        """The tokens as int32, if they can be appended; raises RequestError as `feed` does."""
        given = np.asarray(list(tokens))
        if given.size == 0:
            raise RequestError("feed wants at least one token, got none")
        # Numbers beyond 64 bits become objects; what is wrong with them is that they are no tokens.
        whole = given.dtype.kind in "iu" or all(isinstance(token, int) for token in given.flat)
        if given.ndim != 1 or not whole:
            raise RequestError(
                f"feed wants a sequence of token ids, got {given.dtype} {list(given.shape)}"
            )
        vocabulary = self._record.vocab_size
        outside = np.flatnonzero((given < 0) | (given >= vocabulary))
        if outside.size:
            at = int(outside[0])
            raise RequestError(
                f"token {int(given[at])} (number {at} of those fed) is outside of the vocabulary, "
                f"which is 0 to {vocabulary - 1}"
            )
        longest = self._record.max_sequence_length
        if self._position + len(given) > longest:
            raise RequestError(
                f"the sequence would be {self._position + len(given)} tokens long, the artifact "
                f"holds {longest}; compile it with a larger --max-sequence-length"
            )
        return given.astype(np.int32)

    def appended(self, count: int, memory: Iterable[Any]) -> None:
        """Note that a call wrote `count` tokens to the memory, which it returned as `memory`."""
        self._position += count
        self._memory = list(memory)

    def _prefill(self, ids: NDArray[np.int32]) -> Any:
        """Feed up to one chunk; the hidden states of all its T rows stay on the device."""
        padded = np.zeros(self._record.prefill_chunk, np.int32)
        padded[: len(ids)] = ids
        counts = [len(ids)] if self._record.states else []
        hidden, *memory = self._run("prefill", padded, *counts)
        self.appended(len(ids), memory)
        return hidden

    def _decode(self, token: np.int32) -> NDArray[np.float32]:
        logits, *memory = self._run("decode", np.array([token], np.int32))
        self.appended(1, memory)
        return self._rows(logits)

    def _run(self, function: str, ids: NDArray[np.int32], *counts: int) -> list[Any]:
        tokens = arrays.to_device(self._model.device, ids, "i32")
        return self._model.invoke(function, [tokens, self._position, *counts, *self._memory])

    def _host(self, function: str, arguments: list[Any]) -> NDArray[np.float32]:
        (logits,) = self._model.invoke(function, arguments)
        return self._rows(logits)

    def _rows(self, logits: Any) -> NDArray[np.float32]:
        return arrays.to_host(self._model.device, logits, "f32")
