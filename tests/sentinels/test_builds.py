"""Programs that stock IREE compiles to other bytes each time."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

Compile = Callable[..., "subprocess.CompletedProcess[str]"]
HERE = Path(__file__).parent


def test_the_line_of_a_kernel_without_a_file_is_left_to_chance(
    iree_compile: Compile, tmp_path: Path
) -> None:
    def builds(source: Path) -> set[bytes]:
        found = set()
        for number in range(4):
            output = tmp_path / f"{source.stem}-{number}.vmfb"
            result = iree_compile(source, output)
            assert result.returncode == 0, result.stderr
            found.add(output.read_bytes())
        return found

    named = HERE / "kernel_without_a_file.mlir"
    placed = tmp_path / "placed.mlir"
    placed.write_text(re.sub(r' loc\("\w"\)', "", named.read_text()))
    assert len(builds(placed)) == 1, "a place in a file is the cure"
    assert len(builds(named)) > 1, (
        "IREE fixed the line of kernels without a file: compiler/driver.py need not place them"
    )
