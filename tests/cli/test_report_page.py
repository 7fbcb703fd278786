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


def page_of(folder: Path, target: str, *sizes: int) -> Path:
    """The page of a product, with assembly and IR."""
    (folder / "p.mlir").write_text(scaled(*sizes))
    arguments = ["compile", folder / "p.mlir", "--target", target, "--output", folder / "p.mxc"]
    arguments += ["--dump-ir", folder / "ir", "--html", folder / "report.html"]
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder / "report.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product for gfx950 whose kernel has a loop."""
    return page_of(tmp_path_factory.mktemp("page"), "gfx950", 512, 4096, 16384)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product for gfx950 whose kernel has no loop."""
    return page_of(tmp_path_factory.mktemp("small"), "gfx950", 16, 64, 128)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product for a CPU."""
    return page_of(tmp_path_factory.mktemp("cpu"), "cpu:znver4", 16, 256, 512)


def test_a_page_stands_alone(page: Path) -> None:
    text = page.read_text()
    outside = re.findall(r"""(?:src|href)=["']?(?!data:)([^"'\s>]+)|url\(|@import|fetch\(""", text)
    assert not outside
    assert not list(page.parent.glob(".*partial"))


def told(page: Path, script: str, width: int = 1280) -> list[object]:
    """What a script on the page tells; the browser has nothing against the page."""
    with Browser() as browser:
        browser.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=False,
        )
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
    assert "512 x 4096 x 16384" in row
    assert "mxc_bf16_mxfp4_1x512x4096x16384" in kernel
    assert marked == "True"


#: Opens the kernel of the contraction, and has all texts of the page by their ids.
OPEN = """
location.hash = "Contractions";
(await later(() => document.querySelector("tr.link"))).click();
await later(() => document.querySelector("#assembly span"));
const text = (id) => document.getElementById(id).textContent;
const facts = document.querySelector("dl").innerText.split("\\n").join(" ");
"""


@pytest.mark.browser
def test_a_kernel_of_a_cpu_has_its_nest_its_schedule_and_its_hot_loop(cpu: Path) -> None:
    found = told(
        cpu,
        OPEN
        + """
        await later(() => document.querySelector("#nest span"));
        tell(text("nest"));
        const hot = [...document.querySelectorAll("#assembly .hot")];
        tell(hot.map((each) => each.textContent).join("|"));
        tell(facts);
        document.getElementById("to-loop").click();
        """,
    )
    nest, hot, facts = map(str, found)
    assert nest.startswith("kernel ")
    assert "for k by 32:" in nest
    assert "vdpbf16ps" in hot
    assert re.search(r"schedule tiles of \d+ x \d+ in \d+ columns", facts)
    assert re.search(r"hot loop \d+ multiply", facts)


@pytest.mark.browser
def test_the_chart_of_a_cpu_has_no_roof_and_says_so(cpu: Path) -> None:
    dots, lines, said = told(
        cpu,
        """
        await later(() => document.querySelector("#chart circle"));
        tell(document.querySelectorAll("#chart circle").length);
        tell(document.querySelectorAll("#chart .ridge").length);
        tell(document.getElementById("no-roof").textContent);
        """,
    )
    assert (dots, lines) == (1, 0)
    assert "There is no roof, because the peak rates of a CPU" in str(said)


@pytest.mark.browser
def test_spills_are_red_where_strict_refuses_them(cpu: Path) -> None:
    """In the data of the page one kernel spills and is accepted, then it is refused."""
    found = told(
        cpu,
        """
        Object.assign(level().kernels[0], { spills: 3, refused: false });
        location.hash = "Kernels";
        const row = await later(() => document.querySelector("tr.link"));
        tell(row.textContent.endsWith("3accepts it") && !row.querySelector(".bad"));
        tell(document.getElementById("spills").textContent);
        level().kernels[0].refused = true;
        draw();
        tell(document.querySelector("tr.link").textContent.endsWith("3refuses it"));
        tell(document.querySelectorAll("tr.link .bad").length);
        """,
    )
    assert [found[0], *found[2:]] == [True, True, 2]
    assert "more than a fifth of the instructions" in str(found[1])


@pytest.mark.browser
def test_a_gpu_kernel_is_emitted_directly(page: Path, small: Path) -> None:
    script = f"{OPEN} tell(text('nest')); tell(facts);"
    for each, clocks in ((page, "clocks an iteration of all waves"), (small, "for the whole kern")):
        nest, facts = map(str, told(each, script))
        assert nest == "It has none: mxc emits this kernel directly."
        assert '"transport": ' in facts
        assert clocks in facts
        assert ("there is no loop" in facts) == (each is small)


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_what_is_written_in_a_roofline_covers_nothing(page: Path, width: int) -> None:
    found = told(
        page,
        """
        await later(() => document.querySelector("#chart circle"));
        const boxes = [...document.querySelectorAll("#chart text, #chart circle")]
          .map((each) => [each.textContent, each.getBoundingClientRect()]);
        const meet = (a, b) => a.left < b.right && b.left < a.right
          && a.top < b.bottom && b.top < a.bottom;
        tell(boxes.flatMap(([one, a], at) => boxes.slice(at + 1)
          .filter(([, b]) => meet(a, b)).map(([other]) => [one, other])));
        tell(document.querySelectorAll("#chart .roof").length);
        tell(document.querySelectorAll("#roofs li").length);
        """,
        width,
    )
    overlaps, letters, explained = found
    assert overlaps == []
    assert letters == explained
    assert int(str(letters)) >= 2


@pytest.mark.browser
@pytest.mark.parametrize("target", ["cpu", "page"])
def test_no_tab_is_wider_than_a_phone(target: str, request: pytest.FixtureRequest) -> None:
    found = told(
        request.getfixturevalue(target),
        f"""
        const wide = () => document.documentElement.scrollWidth > window.innerWidth;
        for (const tab of Object.keys(TABS)) {{
          location.hash = tab;
          await later(() => state.tab === tab);
          if (tab === "IR") await later(() => document.querySelector("#ir span"));
          if (wide()) tell(tab);
        }}
        {OPEN}
        if (wide()) tell("kernel");
        """,
        400,
    )
    assert found == []


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
        "nests and assembly of kernels: mxc compile ... --html FILE puts them"
        in (tmp_path / "r.html").read_text()
    )
    refused = CliRunner().invoke(
        app, ["report", str(page.parent / "p.mxc"), "--html", str(tmp_path / "no" / "r.html")]
    )
    assert refused.exit_code == 1
    assert "cannot be written (No such file or directory)" in " ".join(refused.output.split())
