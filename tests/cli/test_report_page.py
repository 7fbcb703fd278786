"""The report as a page, in a browser: from a contraction to its kernel, a search, a difference."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mxc.compiler.cli import app
from tests.browser import Browser


def scaled(m: int, n: int, k: int) -> str:
    """bf16 [m, k] by mxfp4 weights [n, k]."""
    b = k // 32
    maps = "(m, k, b)", "(n, k, b)", "(n, k)", "(m, n)"
    of = ", ".join(f"affine_map<(m, n, k, b) -> {each}>" for each in maps)
    return f"""
    func.func @main(%x: tensor<{m}x{b}x32xbf16>, %w: tensor<{n}x{b}x16xi8>, %s: tensor<{n}x{b}xi8>)
        -> tensor<{m}x{n}xf32> {{
      %e = flow.tensor.bitcast %w : tensor<{n}x{b}x16xi8> -> tensor<{n}x{b}x32xf4E2M1FN>
      %t = flow.tensor.bitcast %s : tensor<{n}x{b}xi8> -> tensor<{n}x{b}xf8E8M0FNU>
      %zero = arith.constant 0.0 : f32
      %empty = tensor.empty() : tensor<{m}x{n}xf32>
      %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<{m}x{n}xf32>)
          -> tensor<{m}x{n}xf32>
      %y = linalg.generic {{indexing_maps = [{of}],
          iterator_types = ["parallel", "parallel", "reduction", "reduction"]}}
          ins(%x, %e, %t : tensor<{m}x{b}x32xbf16>, tensor<{n}x{b}x32xf4E2M1FN>,
              tensor<{n}x{b}xf8E8M0FNU>) outs(%start : tensor<{m}x{n}xf32>) {{
      ^bb0(%p: bf16, %q: f4E2M1FN, %r: f8E8M0FNU, %sum: f32):
        %l = arith.extf %p : bf16 to f32
        %v = arith.scaling_extf %q, %r : f4E2M1FN, f8E8M0FNU to f32
        %u = arith.mulf %l, %v : f32
        %a = arith.addf %sum, %u : f32
        linalg.yield %a : f32
      }} -> tensor<{m}x{n}xf32>
      return %y : tensor<{m}x{n}xf32>
    }}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a product for gfx950, whose kernel has a loop; with assembly and IR."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "p.mlir").write_text(scaled(512, 4096, 4096))
    arguments = ["compile", folder / "p.mlir", "--target", "gfx950", "--output", folder / "p.mxc"]
    arguments += ["--dump-ir", folder / "ir", "--html", folder / "report.html"]
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder / "report.html"


def test_a_page_stands_alone(page: Path) -> None:
    text = page.read_text()
    outside = re.findall(r"""(?:src|href)=["']?(?!data:)([^"'\s>]+)|url\(|@import|fetch\(""", text)
    assert not outside
    assert not list(page.parent.glob(".*partial"))


def told(page: Path, script: str) -> list[object]:
    """What a script on the page tells; the browser has nothing against the page."""
    with Browser() as browser:
        browser.open(page.as_uri())
        found = browser.told(script)
        assert not browser.complaints()
    return found


@pytest.mark.browser
def test_from_a_contraction_to_its_assembly(page: Path) -> None:
    found = told(
        page,
        """
        tell([...document.querySelectorAll("nav button")].map((each) => each.textContent).join());
        location.hash = "Contractions";
        const row = await later(() => document.querySelector("tr.link"));
        tell(row.textContent);
        row.click();
        const assembly = await later(() => document.querySelector("#assembly .hot"));
        tell(document.getElementById("kernel").textContent);
        tell([...document.querySelectorAll("#assembly .hot")]
          .filter((each) => each.textContent.includes("v_mfma")).length > 0);
        """,
    )
    tabs, row, kernel, marked = map(str, found)
    assert tabs == "Overview,Contractions,Kernels,Weights,IR"
    assert "512 x 4096 x 4096" in row
    assert "mxc_bf16_mxfp4_1x512x4096x4096" in kernel
    assert marked == "True"


@pytest.mark.browser
def test_a_search_and_a_difference_of_the_ir(page: Path) -> None:
    found = told(
        page,
        """
        location.hash = "IR";
        await later(() => document.querySelector("#ir span"));
        const choose = (name, part) => {
          const list = document.getElementById(name);
          list.value = [...list.options].findIndex((each) => each.textContent.includes(part));
          list.dispatchEvent(new Event("change"));
        };
        const said = () => document.getElementById("said").textContent;
        choose("left", "00-input");
        choose("right", "00-mxc-check-operations");
        await later(() => said() === "both are the same");
        tell("same");
        choose("right", "mxc-lower-to-gpu-kernels");
        await later(() => /lines differ/.test(said()));
        const lines = (kind) => [...document.querySelectorAll("#ir ." + kind)]
          .map((each) => each.textContent);
        tell(lines("added").some((line) => line.includes("amdgpu.mfma")));
        tell(lines("gone").some((line) => line.includes("arith.scaling_extf")));
        const search = document.getElementById("search");
        search.value = "amdgpu.mfma";
        search.dispatchEvent(new Event("input"));
        await later(() => /lines found/.test(said()));
        tell(lines("found").length > 0 && lines("found").every((line) => /amdgpu.mfma/.test(line)));
        """,
    )
    assert found == ["same", True, True, True]


@pytest.mark.browser
def test_differences_are_the_shortest(page: Path) -> None:
    found = told(
        page,
        """
        const joined = (lines) => lines.map((each) => each.join("")).join();
        const text = (left, right) => joined(difference([...left], [...right]));
        tell(text("abcabba", "cbabac"));
        tell(text("", "ab"));
        tell(text("same", "same"));
        tell(text("axc", "ayc"));
        const random = [...Array(300).keys()].map((n) => String((n * 7919) % 13));
        const more = (each, n) => n % 23 ? [each] : [each, "x"];
        const other = random.filter((_, n) => n % 17).flatMap(more);
        const found = difference(random, other);
        const without = (left) => found.filter(([sign]) => sign !== left).map(([, line]) => line);
        tell(without("+").join() === random.join() && without("-").join() === other.join());
        """,
    )
    first, *others = found
    changes = str(first).split(",")
    assert sum(each[0] != " " for each in changes) == 5  # Myers, 1986, figure 2
    assert others == ["+a,+b", " s, a, m, e", " a,-x,+y, c", True]


def test_what_an_artifact_alone_does_not_hold_is_said(page: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app,
        ["report", str(page.parent / "p.mxc"), "--html", str(tmp_path / "r.html")],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    assert (
        "the assembly of kernels: mxc compile ... --html FILE puts it"
        in (tmp_path / "r.html").read_text()
    )
    refused = CliRunner().invoke(
        app, ["report", str(page.parent / "p.mxc"), "--html", str(tmp_path / "no" / "r.html")]
    )
    assert refused.exit_code == 1
    assert "cannot be written (No such file or directory)" in " ".join(refused.output.split())
