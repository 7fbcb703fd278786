"""How a model is laid out: the choices that shape its program, checked against the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from mxc.dialects.errors import CheckpointError

#: What activations may be rounded to before they meet a weight.
ACTIVATIONS = ("f32", "bf16")

#: Tokens that a sequence may hold where neither the user nor the checkpoint asks for fewer.
DEFAULT_SEQUENCE_LENGTH = 4096

#: Prompt tokens of one prefill call: enough that most of the rows that experts compute are used.
DEFAULT_PREFILL_CHUNK = 128


@dataclass(frozen=True)
class Options:
    """Tokens a sequence may hold, tokens a prefill call takes, what activations are rounded to."""

    max_sequence_length: int
    prefill_chunk: int
    activations: str

    @property
    def capacity(self) -> int:
        """Positions of the cache: a padded last chunk may start at the last token."""
        return self.max_sequence_length + self.prefill_chunk - 1


def choose(
    max_sequence_length: int | None,
    prefill_chunk: int | None,
    activations: str | None,
    *,
    longest: int,
    dense: set[str],
) -> tuple[Options, tuple[str, ...]]:
    """The options, and a note for each that was not asked for.

    `longest` is what the checkpoint was trained for; `dense` the safetensors dtypes of its dense
    weights. Raises CheckpointError for options that the model cannot have.
    """
    notes = []
    length = max_sequence_length
    if length is None:
        length = min(DEFAULT_SEQUENCE_LENGTH, longest)
        notes.append(
            f"sequences hold up to {length} tokens (the model allows {longest}); "
            "choose with --max-sequence-length"
        )
    if not 1 <= length <= longest:
        raise CheckpointError(
            f"--max-sequence-length {length}: the checkpoint's max_position_embeddings is "
            f"{longest}; give 1 to {longest}"
        )
    chunk = min(DEFAULT_PREFILL_CHUNK, length) if prefill_chunk is None else prefill_chunk
    if not 1 <= chunk <= length:
        raise CheckpointError(
            f"--prefill-chunk {chunk}: a sequence holds {length} tokens; give 1 to {length}"
        )
    rounding = activations
    if rounding is None:
        rounding = "bf16" if dense == {"BF16"} else "f32"
        notes.append(
            f"activations are {rounding} where they meet weights, as the checkpoint's dense "
            "weights are; choose with --activations"
        )
    if rounding not in ACTIVATIONS:
        raise CheckpointError(
            f"--activations {rounding}: not supported; supported are {', '.join(ACTIVATIONS)}"
        )
    return Options(length, chunk, rounding), tuple(notes)
