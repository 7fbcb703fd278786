"""What a model may be compiled with."""

import pytest

from mxc.compiler.models.options import Options, choose
from mxc.errors import CheckpointError, FormatError


def plain(length: int, floats: str) -> Options:
    """Options in which nothing is quantized."""
    return Options(max_sequence_length=length, activations=floats, floats=floats, kv_cache=floats)


def test_what_is_not_asked_for_is_said() -> None:
    options, notes = choose(None, None, longest=131072, dense={"BF16"})
    assert options == plain(4096, "bf16")
    assert len(notes) == 2
    assert "up to 4096 tokens (the model allows 131072); choose with --max-sequence" in notes[0]
    assert "activations are bf16" in notes[1]
    assert "choose with --activations" in notes[1]


def test_what_is_asked_for_is_taken_without_a_note() -> None:
    assert choose(100, "f32", longest=128, dense={"BF16"}) == (plain(100, "f32"), ())


@pytest.mark.parametrize(
    ("dense", "wanted"), [({"BF16"}, "bf16"), ({"F32"}, "f32"), ({"BF16", "F32"}, "f32")]
)
def test_activations_follow_the_dense_weights(dense: set[str], wanted: str) -> None:
    assert choose(8, None, longest=8, dense=dense)[0] == plain(8, wanted)
    # What is not quantized is written so in the other modes too.
    assert choose(8, "i8", longest=8, dense=dense)[0].floats == wanted


def test_defaults_fit_a_short_model() -> None:
    assert choose(None, "f32", longest=16, dense=set())[0] == plain(16, "f32")
    assert choose(8, "f32", longest=16, dense=set())[0] == plain(8, "f32")


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("i8", "int8 with a float32 scale"),
        ("mxfp4", "mxfp4 with recipe even"),
        ("mxfp8", "mxfp8e4m3 with recipe rceil"),
        ("mxint8", "mxint8 with recipe rceil"),
    ],
)
def test_what_a_mode_leaves_as_it_is_is_said(mode: str, how: str) -> None:
    options, notes = choose(8, mode, longest=8, dense={"BF16"})
    assert (options.activations, options.floats) == (mode, "bf16")
    assert len(notes) == 1
    assert f"quantized to {how}, in blocks of 32, where they meet MX weights" in notes[0]
    assert "dense weights (attention, router, LM head) and the key/value cache see bf16" in notes[0]
    assert "--quantize-dense" in notes[0]
    _, notes = choose(8, mode, "mxint8", "floor", longest=8, dense={"F32"})
    assert len(notes) == 1
    assert "the router and the key/value cache see f32" in notes[0]


def test_keys_and_values_are_as_floats_unless_asked_for() -> None:
    for asked, wanted, format in (
        (None, "bf16", None),
        ("f32", "f32", None),
        ("mxint8", "mxint8", "mxint8"),
        ("mxfp8", "mxfp8e4m3", "mxfp8e4m3"),
    ):
        options, notes = choose(8, "i8", kv_cache=asked, longest=8, dense={"BF16"})
        assert (options.kv_cache, options.page_format) == (wanted, format)
        # What activations are does not say what is asked for.
        assert ("key/value cache see bf16" in notes[0]) is (asked is None)


def test_dense_weights_have_a_recipe_that_is_said_or_asked_for() -> None:
    options, notes = choose(8, "bf16", "mxfp8", longest=8, dense={"BF16"})
    assert (options.quantize_dense, options.recipe) == ("mxfp8e4m3", "rceil")
    assert str(options.dense_format) == "mxfp8e4m3"
    assert notes == ("dense weights are quantized with the recipe rceil; choose with --recipe",)
    options, notes = choose(8, "bf16", "mxint8", "floor", longest=8, dense={"BF16"})
    assert (options.quantize_dense, options.recipe, notes) == ("mxint8", "floor", ())


@pytest.mark.parametrize(
    ("length", "activations", "said"),
    [
        (0, None, "--max-sequence-length 0: .* is 64; give 1 to 64"),
        (65, None, "--max-sequence-length 65: .*max_position_embeddings is 64; give 1 to"),
        (
            32,
            "i4",
            "--activations i4: not supported; .* f32, bf16, i8, .*, nvfp4",
        ),
    ],
)
def test_refusals(length: int, activations: str | None, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        choose(length, activations, longest=64, dense={"BF16"})


@pytest.mark.parametrize(
    ("wanted", "recipe", "error", "said"),
    [
        ("mxfp4", None, CheckpointError, "--quantize-dense mxfp4: .* are mxfp8, mxint8"),
        (None, "even", CheckpointError, "--recipe even: nothing is quantized; give --quantize-"),
        ("mxfp8", "up", FormatError, "unknown scale recipe 'up'; mxc knows floor, even"),
    ],
)
def test_refusals_of_dense(
    wanted: str | None, recipe: str | None, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        choose(8, "bf16", wanted, recipe, longest=64, dense={"BF16"})
