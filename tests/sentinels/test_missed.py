"""Sound programs that stock IREE compiles to slow code, for want of a form that our passes give."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

Compile = Callable[..., "subprocess.CompletedProcess[str]"]
HERE = Path(__file__).parent
GFX950 = ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx950")


def test_operand_order_decides_the_instruction(iree_compile: Compile, tmp_path: Path) -> None:
    result = iree_compile(
        HERE / "scaled_operand_order.mlir",
        tmp_path / "out.vmfb",
        f"--iree-hal-dump-executable-intermediates-to={tmp_path}",
        target=GFX950,
    )
    assert result.returncode == 0, result.stderr
    [assembly] = tmp_path.glob("*.rocmasm")
    kernels = re.split(r"^(canonical|interleaved)_.*:$", assembly.read_text(), flags=re.MULTILINE)
    found = {
        name: body.count("v_mfma_scale_f32")
        for name, body in zip(kernels[1::2], kernels[2::2], strict=True)
    }
    assert found.keys() == {"canonical", "interleaved"}
    assert found["canonical"] > 0, "the canonical order is the cure, and must get the instruction"
    assert found["interleaved"] == 0, (
        "IREE fixed the choice of scaled instructions for any operand order: "
        "mxc-canonical-operands need no longer reorder"
    )


def test_dequantized_weight_is_written_to_memory(iree_compile: Compile, tmp_path: Path) -> None:
    output = tmp_path / "flow.mlir"

    def results(source: Path) -> list[str]:
        """Type of what each dispatch writes."""
        result = iree_compile(source, output, "--compile-to=flow")
        assert result.returncode == 0, result.stderr
        return re.findall(r"flow\.dispatch .* -> (tensor<\S+>)", output.read_text())

    order = (HERE / "scaled_operand_order.mlir").read_text()
    canonical = tmp_path / "canonical.mlir"
    canonical.write_text(order[: order.index("util.func public @interleaved")])
    assert results(canonical) == ["tensor<256x256xf32>"], "the canonical form is the cure"

    found = results(HERE / "dequantize_then_multiply.mlir")
    assert found != ["tensor<16x2048xf32>"], (
        "IREE fixed the fusion of a dequantized weight: mxc-fuse-dequantize need no longer do it"
    )
    assert "tensor<131072x32xf32>" in found, "all 2048 x 2048 elements, as f32"


def test_dequantized_parameter_is_computed_at_every_load(
    iree_compile: Compile, tmp_path: Path
) -> None:
    output = tmp_path / "flow.mlir"

    def initialisers(*flags: str) -> list[str]:
        """Dispatches that run when the program is loaded."""
        source = HERE / "dequantized_parameter.mlir"
        result = iree_compile(source, output, "--compile-to=flow", *flags)
        assert result.returncode == 0, result.stderr
        dispatches: list[str] = re.findall(r"flow\.dispatch (@\S+)::", output.read_text())
        assert dispatches
        return [name for name in dispatches if name.startswith("@_initializer")]

    cured = initialisers("--iree-opt-const-expr-hoisting=false")
    assert cured == [], "the flag is the cure"
    assert initialisers(), (
        "IREE fixed the hoisting of dequantized parameters: "
        "--iree-opt-const-expr-hoisting=false can go"
    )
