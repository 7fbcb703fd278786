"""What inspecting finds: recipes nobody states, statistics, where two checkpoints differ."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, blocked
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.files.safetensors import read_file
from mxc.compiler.cli import app
from mxc.compiler.inspect.contents import inspect, inspect_against
from mxc.compiler.inspect.infer_recipe import RecipeInference
from mxc.compiler.inspect.statistics import recipe_of, statistics
from mxc.errors import CheckpointError
from mxc.formats.formats import block_format
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import dequantize, quantize

RNG = np.random.default_rng(11)


@pytest.fixture
def weight(tmp_path: Path) -> Callable[..., CanonicalTensor]:
    """Quantize some numbers with a recipe into a canonical tensor."""

    def made(x: NDArray[Any], format: str, recipe: ScaleRecipe | None = None) -> CanonicalTensor:
        q = quantize(x.astype(np.float32), format, recipe=recipe)
        path = tmp_path / "w.safetensors"
        save_file({"w": q.elements, "s": q.scales}, path)
        found = read_file(path)[0]
        return blocked("w", x.shape, block_format(format), found["w"], found["s"])

    return made


NUMBERS = {
    "normal": RNG.standard_normal((64, 1024)),
    "smaller": 0.7 * RNG.standard_normal((64, 1024)),
    "larger": 1.3 * RNG.standard_normal((64, 1024)),
    "heavy tails": RNG.standard_t(3, (64, 1024)),
    "rows": RNG.standard_normal((64, 1024)) * np.exp2(RNG.uniform(0, 8, (64, 1))),
}


@pytest.mark.parametrize("format", ["mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxfp8e4m3", "mxint8"])
@pytest.mark.parametrize("recipe", ScaleRecipe)
def test_the_recipe_is_among_those_inferred(
    weight: Callable[..., CanonicalTensor], format: str, recipe: ScaleRecipe
) -> None:
    for x in NUMBERS.values():
        found = recipe_of(weight(x, format, recipe))
        assert found["recipe_source"] == "inferred"
        assert str(recipe) in found["recipe"].split(" or ")


@pytest.mark.parametrize("x", NUMBERS.values(), ids=NUMBERS)
def test_what_the_bytes_of_fp4_cannot_tell_apart(
    weight: Callable[..., CanonicalTensor], x: NDArray[Any]
) -> None:
    """Rounding up shows in every weight; floor and even may look alike, and are both named then."""
    for recipe, others in (("rceil", set()), ("ceil", set()), ("floor", {"even"}),
                           ("even", {"floor"})):  # fmt: skip
        found = set(recipe_of(weight(x, "mxfp4", recipe))["recipe"].split(" or "))
        assert found <= {recipe} | others


def test_no_recipe_gives_random_codes(
    weight: Callable[..., CanonicalTensor], tmp_path: Path
) -> None:
    w = weight(NUMBERS["normal"], "mxfp4", "floor")
    codes = {"w": RNG.integers(0, 256, (64, 512), np.uint8), "s": w.scales.read()}
    save_file(codes, tmp_path / "w.safetensors")
    assert recipe_of(w)["recipe"] == "unstated"
    few = weight(NUMBERS["normal"][:1, :320], "mxfp4", "floor")
    inference = RecipeInference(few)
    inference.look(few.piece(0, 1))
    assert (inference.blocks, inference.recipes()) == (10, ())


@pytest.mark.parametrize("format", ["mxfp4", "mxfp6e3m2", "mxfp8e4m3", "mxfp8e5m2", "mxint8"])
def test_statistics(weight: Callable[..., CanonicalTensor], format: str) -> None:
    """Counts against the numbers themselves."""
    x = NUMBERS["rows"].copy()
    x[0, :32] = 0
    w = weight(x, format, "floor")
    found = statistics(w)
    element = block_format(format).element
    values = dequantize(quantize(x.astype(np.float32), format, recipe="floor"))
    scales = np.ldexp(np.float32(1), w.scales.read().astype(int) - 127)
    codes = np.abs(values / np.repeat(scales, 32, axis=1))
    assert found["first"] == values[0, :32].tolist()
    assert found["zero"] == int((values == 0).sum())
    assert found["saturated"] == int((codes == element.max).sum()) > 0
    assert found["nan_scales"] == found["nan"] == 0
    assert sum(found["scale_exponents"].values()) == found["scales"] == 64 * 32


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, NDArray[Any], Callable[..., dict[str, Any]]]:
    """Two checkpoints of the same numbers: mxfp8 in one, and bf16 in the other."""
    q = quantize(NUMBERS["normal"][:4, :64].astype(np.float32), "mxfp8e4m3", recipe="floor")
    values = dequantize(q)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    save_file(
        {"x.weight": q.elements.view(ml_dtypes.float8_e4m3fn), "x.weight_scale": q.scales},
        tmp_path / "a" / "model.safetensors",
    )
    spec = {"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": 32, "ch_axis": -1,
            "scale_format": "e8m0", "scale_calculation_mode": "floor"}  # fmt: skip
    declared = {"quant_method": "quark", "global_quant_config": {"weight": spec}}
    (tmp_path / "a" / "config.json").write_text(json.dumps({"quantization_config": declared}))
    (tmp_path / "b" / "config.json").write_text("{}")

    def second(**tensors: NDArray[Any]) -> dict[str, Any]:
        save_file({"x.weight": values} | tensors, tmp_path / "b" / "model.safetensors")
        return inspect_against(tmp_path / "a", tmp_path / "b")

    return tmp_path, values, second


def test_the_same_values(pair: tuple[Any, ...]) -> None:
    folder, _, second = pair
    found = second()
    assert (found["result"], found["tensors"][0]["result"]) == ("same values", "same values")
    assert found["dialects"] == ["quark", "plain"]
    own = inspect_against(folder / "a", folder / "a")
    assert own["result"] == "same bytes"
    found = second(other=np.zeros(3))
    assert (found["result"], found["only_in_second"]) == ("different", ["other"])


def test_the_same_format_and_other_bytes(pair: tuple[Any, ...]) -> None:
    folder, values, second = pair
    values = values.copy()
    values[1, 1] = np.nan
    second(**{"x.weight": values})
    (folder / "c").mkdir()
    (folder / "c" / "config.json").write_text("{}")

    def third(x: NDArray[Any]) -> dict[str, Any]:
        save_file({"x.weight": x}, folder / "c" / "model.safetensors")
        return inspect_against(folder / "b", folder / "c")

    assert third(values)["result"] == "same bytes"
    assert third(values.astype(np.float64))["result"] == "same values"
    other = values.copy()
    other[3, 63] *= 2
    (row,) = third(other)["tensors"]
    assert (row["result"], row["elements"]) == ("different", 1)


def test_where_they_differ(pair: tuple[Any, ...]) -> None:
    folder, values, second = pair
    values = values.copy()
    values[2, 5] += 1
    values[3, 0] = np.nan
    found = second(**{"x.weight": values})
    (row,) = found["tensors"]
    assert (found["result"], row["elements"]) == ("different", 2)
    assert row["largest_difference"] == "inf"
    first, second_place = row["first"]
    assert (first["row"], first["column"]) == (2, 5)
    assert first["values"][1] == first["values"][0] + 1
    assert second_place["values"][1] == "nan"
    json.dumps(found, allow_nan=False)
    with pytest.raises(CheckpointError, match=r"no tensor y among 1"):
        inspect_against(folder / "a", folder / "b", "y")
    found = second_shape(folder, values)
    assert found["tensors"][0]["shapes"] == [[4, 64], [2, 128]]


def second_shape(folder: Path, values: NDArray[Any]) -> dict[str, Any]:
    save_file({"x.weight": values.reshape(2, 128)}, folder / "b" / "model.safetensors")
    return inspect_against(folder / "a", folder / "b")


def test_on_the_command_line(pair: tuple[Any, ...]) -> None:
    folder, values, second = pair
    second()
    a, b = str(folder / "a"), str(folder / "b")

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, words)

    listed = run("inspect", a)
    assert listed.exit_code == 0
    assert "(checkpoint, quark)" in " ".join(listed.output.split())
    assert "floor" in listed.output
    one = run("inspect", a, "x.weight")
    assert "declared" in one.output
    same = run("inspect", a, "--against", b)
    assert same.exit_code == 0
    text = " ".join(same.output.split())
    assert "0 tensors of the same bytes, 1 of the same values, 0 differ" in text
    values = values + np.float32(1)
    second(**{"x.weight": values})
    differ = run("inspect", a, "--against", b)
    assert differ.exit_code == 1
    assert "row 0, column 0:" in differ.output
    parsed = json.loads(run("inspect", a, "--against", b, "--json").output)
    assert parsed["result"] == "different"
    out = folder / "ct"
    converted = run("convert", a, "--to", "compressed-tensors", "--output", str(out))
    assert converted.exit_code == 0
    assert "no word for the recipe of the scales: floor" in converted.output
    assert inspect_against(folder / "a", out)["result"] == "same bytes"
    assert open_checkpoint(out).dialect == "compressed-tensors"
    for to, why in (
        ("gpt-oss", "x.weight is mxfp8e4m3 [4, 64], which gpt-oss cannot hold"),
        ("gguf", "architecture model_type None is not supported"),
    ):
        refused = run("convert", a, "--to", to, "--output", str(folder / "x"))
        assert refused.exit_code == 1
        assert why in refused.output
        assert not (folder / "x").exists()
    assert inspect(folder / "a")["quantization"]["method"] == "quark"
