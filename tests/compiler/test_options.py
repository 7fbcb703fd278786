"""What a model may be compiled with."""

import pytest

from mxc.compiler.models.options import Options, choose
from mxc.dialects.errors import CheckpointError


def test_what_is_not_asked_for_is_said() -> None:
    options, notes = choose(None, None, None, longest=131072, dense={"BF16"})
    assert options == Options(4096, 128, "bf16")
    assert len(notes) == 2
    assert "up to 4096 tokens (the model allows 131072); choose with --max-sequence" in notes[0]
    assert "activations are bf16" in notes[1]
    assert "choose with --activations" in notes[1]


def test_what_is_asked_for_is_taken_without_a_note() -> None:
    assert choose(100, 7, "f32", longest=128, dense={"BF16"}) == (Options(100, 7, "f32"), ())


@pytest.mark.parametrize(
    ("dense", "wanted"), [({"BF16"}, "bf16"), ({"F32"}, "f32"), ({"BF16", "F32"}, "f32")]
)
def test_activations_follow_the_dense_weights(dense: set[str], wanted: str) -> None:
    assert choose(8, None, None, longest=8, dense=dense)[0].activations == wanted


def test_defaults_fit_a_short_model() -> None:
    assert choose(None, None, "f32", longest=16, dense=set())[0] == Options(16, 16, "f32")
    assert choose(8, None, "f32", longest=16, dense=set())[0] == Options(8, 8, "f32")


def test_capacity_holds_a_padded_last_chunk() -> None:
    # The last token at the last position, in a chunk of its own that is padded to its length.
    assert Options(100, 7, "f32").capacity == 99 + 7


@pytest.mark.parametrize(
    ("length", "chunk", "activations", "said"),
    [
        (0, None, None, "--max-sequence-length 0: .* is 64; give 1 to 64"),
        (65, None, None, "--max-sequence-length 65: .*max_position_embeddings is 64; give 1 to"),
        (32, 0, None, "--prefill-chunk 0: a sequence holds 32 tokens; give 1 to 32"),
        (32, 33, None, "--prefill-chunk 33: a sequence holds 32 tokens; give 1 to 32"),
        (32, 8, "i8", "--activations i8: not supported; supported are f32, bf16"),
    ],
)
def test_refusals(length: int, chunk: int | None, activations: str | None, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        choose(length, chunk, activations, longest=64, dense={"BF16"})
