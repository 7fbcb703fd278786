"""The text of a pipeline: parsed to passes, and printed from passes."""

from dataclasses import dataclass

import pytest
from iree.compiler import ir

from mxc.compiler.pipelines import pipeline
from mxc.errors import PassError
from mxc.passes import PASSES, Pass, parse, register, run, spec


@dataclass(frozen=True)
class Sample(Pass):
    name = "mxc-sample"
    block_size: int = 32
    strict: bool = False
    kind: str = "even"

    def run(self, module: ir.Operation) -> None:
        """Do nothing: only the text of the pass matters."""


KNOWN: tuple[type[Pass], ...] = (*PASSES, Sample)

SAMPLES = [
    *(cls() for cls in PASSES),
    Sample(),
    Sample(block_size=16),
    Sample(strict=True, kind="floor"),
]


@pytest.mark.parametrize("value", SAMPLES, ids=str)
def test_spec_parses_back(value: Pass) -> None:
    assert parse(str(value), KNOWN) == (value,)


def test_spec_shows_what_differs() -> None:
    assert str(Sample()) == "mxc-sample"
    assert str(Sample(block_size=16, strict=True)) == "mxc-sample{block-size=16 strict=true}"


def test_native_passes_stay_text() -> None:
    text = "mxc-sample{strict=true}, canonicalize{max-iterations=2},util.func(cse,canonicalize)"
    assert parse(text, KNOWN) == (
        Sample(strict=True),
        "canonicalize{max-iterations=2}",
        "util.func(cse,canonicalize)",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mxc-fuse-dequant", "did you mean mxc-fuse-dequantize?"),
        ("mxc-fuse-dequant", "known: mxc-canonical-accumulators, mxc-canonical-operands"),
        ("canonicalise", "unknown pass 'canonicalise'"),
        ("fuse-dequantize", "did you mean mxc-fuse-dequantize?"),
        ("canonicalize{foo=1}", "no such option foo"),
        ("mxc-sample{blocksize=4}", "no option 'blocksize'; its options: block-size, strict, kind"),
        ("mxc-sample{blocksize=4}", "did you mean block-size?"),
        ("mxc-sample{block-size=four}", "must be an integer, got 'four'"),
        ("mxc-sample{block-size=0}", "must be at least 1, got 0"),
        ("mxc-sample{block-size=4 block-size=8}", "block-size of mxc-sample is given twice"),
        ("canonicalize{max-iterations=1 max-iterations=2}", "max-iterations is given twice"),
        ("util.func(canonicalize{top-down=1 top-down=0})", "top-down is given twice"),
        ("mxc-sample{strict=1}", "must be true or false, got '1'"),
        ("mxc-sample{strict}", "needs a value"),
        ("mxc-fuse-dequantize{x=1}", "its options: none"),
        ("util.func(cse", "a bracket is not closed"),
        ("cse)", "')' at 3 closes nothing"),
        ("cse,,canonicalize", "a pass name is missing at 4"),
        ("", "a pass name is missing at 0"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(PassError) as refusal:
        parse(text, KNOWN)
    assert message in str(refusal.value)


def test_the_table_is_alphabetical_and_without_duplicates() -> None:
    names = [cls.name for cls in PASSES]
    assert names == sorted(set(names))


def test_a_registered_pass_is_named_beside_those_of_mlir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "_registered", {})

    @register
    @dataclass(frozen=True)
    class Own(Pass):
        name = "own-count"
        least: int = 1

        def run(self, module: ir.Operation) -> None:
            module.attributes["own.least"] = ir.StringAttr.get(str(self.least))

    chosen = parse("canonicalize, own-count{least=3}, mxc-expand-blocks")
    known = {each.name: each for each in PASSES}
    assert chosen == ("canonicalize", Own(least=3), known["mxc-expand-blocks"]())
    with ir.Context():
        module = ir.Module.parse("func.func @f() { return }")
    run(chosen, module)
    assert ir.StringAttr(module.operation.attributes["own.least"]).value == "3"


@pytest.mark.parametrize("taken", ["mxc-expand-blocks", "canonicalize", "Own Pass"])
def test_a_name_that_is_taken_is_refused(taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "_registered", {})
    kind = type("Own", (Sample,), {"name": taken})
    with pytest.raises(PassError, match=r"already|cannot be called"):
        register(kind)


def test_a_pass_of_modules_inside_of_functions_is_refused() -> None:
    with pytest.raises(PassError, match=r"mxc-expand-blocks runs on a whole module and stands in"):
        parse("func.func(cse,mxc-expand-blocks)")


def test_passes_after_a_phase() -> None:
    stages = pipeline("gfx950")
    names = [str(each) for each in stages.after("flow")]
    assert names == [
        "mxc-verify-packed-weights{strict=false}",
        "mxc-read-whole-tensors",
        "mxc-drop-aliases",
    ]
    assert set(stages.passes) == {
        each
        for phase in (None, "flow", "stream", "executable-sources")
        for each in stages.after(phase)
    }
