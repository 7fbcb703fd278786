"""Programs from JAX: the numbers are those of JAX, and weights are packed."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.artifact import Artifact
from mxc.compiler.report import Report
from mxc.errors import CheckpointError, MxcError, RequestError
from tests.compiler.programs.jax_modules import MODULES

N, K = 64, 128
RANDOM = np.random.default_rng(0)


def _elements(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.standard_normal(shape).astype(ml_dtypes.float4_e2m1fn))


def _scales(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.integers(120, 130, shape, np.uint8).view(ml_dtypes.float8_e8m0fnu))


BY_ROWS, ROW_SCALES = _elements(N, K), _scales(N, K // 32)
BY_COLUMNS, COLUMN_SCALES = _elements(K, N), _scales(K // 32, N)
WIDE = RANDOM.standard_normal((40, 40))
DENSE = jnp.asarray(RANDOM.standard_normal((K, N)), jnp.float32)


def plain(given: dict[str, Any]) -> dict[str, Any]:
    """A weight that is dequantized and multiplied, of rows that come with the call."""
    blocks = BY_ROWS.astype(jnp.float32).reshape(N, K // 32, 32)
    weight = (blocks * ROW_SCALES.astype(jnp.float32)[..., None]).reshape(N, K)
    return {"y": given["x"] @ weight.T}


def scaled_dot(x: Any, scales: Any) -> Any:
    return jax.lax.scaled_dot(
        x, BY_COLUMNS, lhs_scale=scales, rhs_scale=COLUMN_SCALES, preferred_element_type=jnp.float32
    )


def scaled_matmul(x: Any, scales: Any) -> Any:
    """JAX computes it on GPUs alone; here it is the same product as `dequantized`."""
    return jax.nn.scaled_matmul(
        x[None], BY_ROWS[None], scales[None], ROW_SCALES[None], preferred_element_type=jnp.float32
    )[0]


def dequantized(x: Any, scales: Any) -> Any:
    def whole(elements: Any, scales: Any) -> Any:
        return elements.astype(jnp.float32) * jnp.repeat(scales.astype(jnp.float32), 32, axis=1)

    return whole(x, scales) @ whole(BY_ROWS, ROW_SCALES).T


def block(x: Any) -> Any:
    """A layer of a transformer with MX weights; what it is given is donated."""

    def normal(x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    heads = plain({"x": normal(x)})["y"].reshape(1, -1, 2, N // 2)
    mixed = jax.nn.dot_product_attention(heads, heads, heads, is_causal=True)
    x = x + jnp.concatenate([mixed.reshape(-1, N)] * 2, axis=-1)
    hidden = jax.nn.gelu(normal(x) @ DENSE)
    up = plain({"x": jnp.concatenate([hidden, hidden], axis=-1)})["y"]
    return x + jnp.concatenate([up, up], axis=-1)


def rounded(x: Any) -> Any:
    return x.astype(jnp.float4_e2m1fn)


def same(x: Any) -> Any:
    return x


def _report(artifact: Artifact) -> Report:
    return Report.from_dict(json.loads((artifact.path / REPORT).read_text()))


@pytest.fixture(scope="module")
def exported() -> dict[str, export.Exported]:
    (rows,) = export.symbolic_shape("rows")
    floats = jax.ShapeDtypeStruct((4, K), jnp.float32)
    elements = jax.ShapeDtypeStruct((4, K), jnp.float4_e2m1fn)
    scales = jax.ShapeDtypeStruct((4, K // 32), jnp.float8_e8m0fnu)
    symbolic = {"x": jax.ShapeDtypeStruct((rows, K), jnp.float32)}
    found = {
        "plain": export.export(jax.jit(plain))(symbolic),
        "scaled_dot": export.export(jax.jit(scaled_dot))(elements, scales),
        "scaled_matmul": export.export(jax.jit(scaled_matmul), platforms=["rocm"])(
            elements, scales
        ),
        "block": export.export(jax.jit(block, donate_argnums=0))(floats),
        "same": export.export(jax.jit(same))(elements),
        "rounded": export.export(jax.jit(rounded))(floats),
    }
    for name, module in MODULES.items():
        function, shapes = module()
        found[name] = export.export(jax.jit(function))(*shapes)
    return found


@pytest.fixture(scope="module")
def compiled(
    exported: dict[str, export.Exported], tmp_path_factory: pytest.TempPathFactory
) -> Artifact:
    return mxc.compile(exported, output=tmp_path_factory.mktemp("jax") / "all.mxc")


@pytest.fixture(scope="module")
def model(compiled: Artifact) -> Any:
    return mxc.load(compiled.path, threads=1)


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_come_with_the_call(model: Any, rows: int) -> None:
    x = RANDOM.standard_normal((rows, K)).astype(np.float32)
    (found,) = model.call("plain", x)
    np.testing.assert_allclose(found, plain({"x": x})["y"], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "reference"), [("scaled_dot", scaled_dot), ("scaled_matmul", dequantized)]
)
def test_elements_under_scales_are_multiplied_exactly(
    model: Any, name: str, reference: Any
) -> None:
    x = RANDOM.standard_normal((4, K)).astype(ml_dtypes.float4_e2m1fn)
    scales = RANDOM.integers(120, 130, (4, K // 32), np.uint8).view(ml_dtypes.float8_e8m0fnu)
    (found,) = model.call(name, x, scales)
    np.testing.assert_array_equal(found, reference(jnp.asarray(x), jnp.asarray(scales)))


def test_a_block_of_a_transformer(model: Any) -> None:
    x = RANDOM.standard_normal((4, K)).astype(np.float32)
    (found,) = model.call("block", x)
    wanted = np.asarray(block(jnp.asarray(x)))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_four_bit_elements_cross_the_boundary_in_their_order(model: Any) -> None:
    codes = RANDOM.integers(0, 16, (4, K), np.uint8).view(ml_dtypes.float4_e2m1fn)
    (found,) = model.call("same", codes)
    assert found.dtype == ml_dtypes.float4_e2m1fn
    np.testing.assert_array_equal(found.view(np.uint8), codes.view(np.uint8))


def test_conversion_to_four_bits(model: Any) -> None:
    x = np.linspace(-7, 7, 4 * K).astype(np.float32).reshape(4, K)
    (found,) = model.call("rounded", x)
    np.testing.assert_array_equal(found, x.astype(ml_dtypes.float4_e2m1fn))


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_others(model: Any, name: str) -> None:
    function, shapes = MODULES[name]()
    values = [RANDOM.standard_normal(each.shape).astype(np.float32) for each in shapes]
    found = model.call(name, *values)
    for one, wanted in zip(found, jax.tree.leaves(function(*values)), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-5)


def test_weights_are_packed_in_rows_whatever_their_order(compiled: Artifact) -> None:
    layouts = {w.shape: w.layout for w in compiled.manifest.weights.values()}
    assert layouts[N, K // 32, 32] == "panel16x4"
    assert layouts[N, K] == "panel16x4"  # DENSE is [K, N]
    assert not any("transposed with each call" in note for note in compiled.manifest.notes)


def test_products_with_packed_weights_are_kernels_of_ours(compiled: Artifact) -> None:
    products = [one for one in _report(compiled).matmuls if "mxfp4" in one.rhs]
    assert len(products) == 5
    assert not any(one.fallback or one.reason for one in products)


def test_names_of_trees(compiled: Artifact) -> None:
    function = compiled.manifest.functions["plain"]
    assert function.input_names == ("given['x']",)
    assert function.output_names == ("result['y']",)


def test_an_argument_that_does_not_fit_is_named(model: Any) -> None:
    with pytest.raises(RequestError, match=r"argument 0 \(given\['x'\]\): wants f32 \[\?, 128\]"):
        model.call("plain", np.zeros((2, K + 1), np.float32))


def test_what_jax_asserts_of_sizes_is_asserted(model: Any) -> None:
    with pytest.raises(RuntimeError, match="Expected value >= 1 for dimension variable 'rows'"):
        model.call("plain", np.zeros((0, K), np.float32))


def test_heads_that_share_keys_are_a_kernel(tmp_path: Path) -> None:
    """JAX puts the query heads of a head of keys into one loop with the queries."""
    attend = jax.nn.dot_product_attention
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.normal(size=(2, length, heads, 16)).astype(np.float32)
        for length, heads in ((9, 4), (11, 2), (11, 2))
    )
    mask = rng.random((2, 1, 9, 11)) < 0.7
    mask[..., 0] = True
    short, one = slice(0, 9), slice(0, 1)
    cases: dict[str, tuple[Any, list[Any], str]] = {
        "all": (attend, [q, k, v], "2x2x16_f32_dense"),
        "causal": (
            lambda q, k, v: attend(q, k, v, is_causal=True),
            [q, k[:, short], v[:, short]],
            "2x2x16_f32_dense_causal",
        ),
        "one": (attend, [q, k[:, :, one], v[:, :, one]], "1x4x16_f32_dense"),
        "masked": (
            lambda q, k, v, m: attend(q, k, v, mask=m),
            [q, k, v, mask],
            "2x2x16_f32_dense_masked",
        ),
    }
    programs = {
        name: export.export(jax.jit(f))(*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given))
        for name, (f, given, _) in cases.items()
    }
    made = mxc.compile(programs, output=tmp_path / "x.mxc", listing=False)
    report, model = _report(made), mxc.load(made.path, threads=1)
    assert not report.matmuls
    for name, (f, given, kernel) in cases.items():
        kernels = {one.kernel for one in report.operations if one.function == name}
        assert f"mxc_attention_{kernel}" in kernels
        (found,) = model.call(name, *given)
        np.testing.assert_allclose(found, f(*given), rtol=1e-4, atol=1e-5)


def test_a_block_of_a_transformer_for_a_gpu(
    exported: dict[str, export.Exported], tmp_path: Path
) -> None:
    found = mxc.compile(exported["block"], target="gfx950", output=tmp_path / "block.mxc")
    products = [one for one in _report(found).matmuls if "mxfp4" in one.rhs]
    assert len(products) == 2
    assert not any(one.fallback or one.reason for one in products)


def test_a_file_for_a_gpu(exported: dict[str, export.Exported], tmp_path: Path) -> None:
    file = tmp_path / "dot.stablehlo"
    file.write_text(exported["scaled_dot"].mlir_module())
    found = mxc.compile(file, target="gfx950", output=tmp_path / "dot.mxc", strict=True)
    assert [one.lowering for one in _report(found).matmuls] == ["v_mfma_scale_f32_16x16x128_f8f6f4"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.astype(jnp.float8_e8m0fnu), r"test_jax\.py.*converts f32 to f8E8M0FNU"),
        (
            lambda x: jnp.linalg.svd(x)[1],
            r"test_jax\.py.*a call of lapack_sgesdd_ffi has no lowering",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_a_line(
    function: Any, message: str, tmp_path: Path
) -> None:
    shape = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    program = export.export(jax.jit(function))(shape)
    with pytest.raises(MxcError, match=message) as caught:
        mxc.compile(program, output=tmp_path / "x.mxc")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "of", "message"),
    [
        (lambda x: x.astype(jnp.float64), "float32", "result 0 .*is tensor<40x40xf64>, and IREE"),
        (lambda x: x.astype(jnp.float32), "float64", r"argument 0 \(x\) is .*make it float32"),
        (lambda x: (x * WIDE).astype(jnp.float32), "float32", r"\[40, 40\] is float64, and IREE"),
    ],
)
def test_float64_is_refused(function: Any, of: str, message: str, tmp_path: Path) -> None:
    with jax.enable_x64(True):
        program = export.export(jax.jit(function))(jax.ShapeDtypeStruct((40, 40), of))
    with pytest.raises(MxcError, match=message) as caught:
        mxc.compile(program, output=tmp_path / "x.mxc")
    assert "\n" not in str(caught.value)


def test_an_importer_that_dies_is_an_error_in_a_line(tmp_path: Path) -> None:
    deep = "[" * 20000 + "]" * 20000
    file = tmp_path / "x.stablehlo"
    file.write_text(f"func.func @main() attributes {{a = {deep}}} {{ return }}")
    with pytest.raises(
        MxcError, match=r"died in IREE import of main \(killed by SIGSEGV"
    ) as caught:
        mxc.compile(file, output=tmp_path / "x.mxc")
    assert "\n" not in str(caught.value)


def test_a_file_without_the_function_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.stablehlo").write_text("")
    with pytest.raises(MxcError, match="has no function @main; write the text of") as caught:
        mxc.compile(tmp_path / "x.stablehlo", output=tmp_path / "x.mxc")
    assert "\n" not in str(caught.value)


def test_an_object_of_another_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="a list is no source"):
        mxc.compile([1])


def test_options_of_models_are_refused(exported: dict[str, export.Exported]) -> None:
    with pytest.raises(CheckpointError, match="--recipe has no meaning for a program"):
        mxc.compile(exported["same"], recipe="rceil")
