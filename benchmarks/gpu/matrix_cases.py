"""The cases of the coverage matrix: pairs of formats, shapes, forms of the IR, epilogues, models.

Shapes of models are those of their config.json (hidden_size, intermediate_size, heads, experts,
experts per token) on the Hugging Face hub.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from matrix_case import FLOATS, SQUARES, Case, Epilogue

_ELEMENTS = ("f4", "f6e2m3", "f6e3m2", "e4m3", "e5m2")

#: (M, N, K). Dimensions are 1 to 8, no multiple of a tile, a multiple of 32 only, or very large.
_SHAPES = {
    "M1": (1, 4096, 4096), "M2": (2, 4096, 4096), "M4": (4, 4096, 4096), "M8": (8, 4096, 4096),
    "M16": (16, 4096, 4096), "M32": (32, 4096, 4096), "M64": (64, 4096, 4096),
    "M128": (128, 4096, 4096), "M256": (256, 4096, 4096),
    "M100 N2880 K2880": (100, 2880, 2880), "M128 N2880 K2880": (128, 2880, 2880),
    "M4096 N2880 K2880": (4096, 2880, 2880), "M1 N2880 K2880": (1, 2880, 2880),
    "M128 N4096 K2944": (128, 4096, 2944), "M4096 N4096 K4128": (4096, 4096, 4128),
    "M1000 N1000 K4096": (1000, 1000, 4096), "M4097 N4097 K4096": (4097, 4097, 4096),
    "M128 N5760 K2880": (128, 5760, 2880), "M4096 N5760 K2880": (4096, 5760, 2880),
    "M16 N16 K128": (16, 16, 128), "M7 N33 K96": (7, 33, 96),
    "M8192 N8192 K8192": (8192, 8192, 8192),
    "dynamic M K4096": (-1, 4096, 4096), "dynamic M N2880 K2880": (-1, 2880, 2880),
}  # fmt: skip

#: Linear layers of models: N, K, experts, and experts per token. The last two are 0 if dense.
_MODELS: dict[str, dict[str, tuple[int, int, int, int]]] = {
    "gpt-oss-20b": {"experts up": (5760, 2880, 32, 4), "experts down": (2880, 2880, 32, 4),
                    "q": (4096, 2880, 0, 0), "kv": (512, 2880, 0, 0), "o": (2880, 4096, 0, 0)},
    "gpt-oss-120b": {"experts up": (5760, 2880, 128, 4), "experts down": (2880, 2880, 128, 4)},
    "llama-3.1-8b": {"q": (4096, 4096, 0, 0), "kv": (1024, 4096, 0, 0),
                     "up": (14336, 4096, 0, 0), "down": (4096, 14336, 0, 0)},
    "llama-3.1-70b": {"q": (8192, 8192, 0, 0), "kv": (1024, 8192, 0, 0),
                      "up": (28672, 8192, 0, 0), "down": (8192, 28672, 0, 0)},
    "llama-3.1-405b": {"q": (16384, 16384, 0, 0), "kv": (1024, 16384, 0, 0),
                       "up": (53248, 16384, 0, 0), "down": (16384, 53248, 0, 0)},
    "deepseek-r1": {"q_a": (1536, 7168, 0, 0), "q_b": (24576, 1536, 0, 0),
                    "kv_a": (576, 7168, 0, 0), "kv_b": (32768, 512, 0, 0),
                    "o": (7168, 16384, 0, 0), "up": (18432, 7168, 0, 0),
                    "down": (7168, 18432, 0, 0), "experts up": (2048, 7168, 256, 8),
                    "experts down": (7168, 2048, 256, 8)},
    "qwen3-30b-a3b": {"q": (4096, 2048, 0, 0), "kv": (512, 2048, 0, 0), "o": (2048, 4096, 0, 0),
                      "experts up": (768, 2048, 128, 8), "experts down": (2048, 768, 128, 8)},
    "qwen3-235b-a22b": {"q": (8192, 4096, 0, 0), "kv": (512, 4096, 0, 0), "o": (4096, 8192, 0, 0),
                        "experts up": (1536, 4096, 128, 8), "experts down": (4096, 1536, 128, 8)},
}  # fmt: skip
_ROWS = (1, 16, 128, 1000, 4096)
_MODEL_PAIRS = (("f4", "f4"), ("e4m3", "f4"), ("e4m3", "e4m3"), ("bf16", "f4"))


def cases() -> list[Case]:
    """Return the cases whose programs mxc's builders write (matrix_programs.py)."""
    return [
        *_pairs(),
        *_weight_only(),
        *_shapes(),
        *_dynamic(),
        *_float_scales(),
        *_squares(),
        *_dense(),
        *_forms(),
        *_epilogues(),
        *_alone(),
        *_models(),
    ]


def _pairs() -> Iterator[Case]:
    for lhs in _ELEMENTS:
        for rhs in _ELEMENTS:
            yield Case(name=f"pair {lhs}x{rhs}", group="pair", m=4096, n=4096, k=4096,
                       lhs=lhs, rhs=rhs)  # fmt: skip
            yield Case(name=f"pair {lhs}x{rhs} M16 K2880", group="pair", m=16, n=2880, k=2880,
                       lhs=lhs, rhs=rhs)  # fmt: skip
    for kind, block in (("f4", 16), ("e4m3", 16), ("f4", 64), ("f4", 128)):
        yield Case(name=f"pair {kind}x{kind} block {block}", group="pair", m=4096, n=4096, k=4096,
                   lhs=kind, rhs=kind, block=block)  # fmt: skip
    # Pairs that no scaled instruction takes.
    for lhs, rhs in product(("nvf4", "f4", "f6e2m3", "e4m3", "int8"), ("nvf4", "int8")):
        for where, m, n, k in (("", 4096, 4096, 4096), (" M16 K2880", 16, 2880, 2880)):
            yield Case(name=f"pair {lhs}x{rhs}{where}", group="pair", m=m, n=n, k=k, lhs=lhs,
                       rhs=rhs)  # fmt: skip


def _weight_only() -> Iterator[Case]:
    for lhs in FLOATS:
        for rhs in (*_ELEMENTS, "nvf4", "int8"):
            yield Case(name=f"weight-only {lhs}x{rhs}", group="weight-only", m=4096, n=4096,
                       k=4096, lhs=lhs, rhs=rhs)  # fmt: skip
        yield Case(name=f"weight-only {lhs}xf4 dequantized first", group="weight-only", m=4096,
                   n=4096, k=4096, lhs=lhs, form="dequantized", between=lhs)  # fmt: skip
    for m in (1, 16, 100):
        for rhs in ("f4", "e4m3", "nvf4"):
            yield Case(name=f"weight-only bf16x{rhs} M{m} K2880", group="weight-only", m=m, n=2880,
                       k=2880, lhs="bf16", rhs=rhs)  # fmt: skip
        yield Case(name=f"weight-only bf16xf4 M{m} K2880 dequantized first", group="weight-only",
                   m=m, n=2880, k=2880, lhs="bf16", form="dequantized", between="bf16")  # fmt: skip


def _shapes() -> Iterator[Case]:
    for name, (m, n, k) in _SHAPES.items():
        yield Case(name=f"shape f4 {name}", group="shape", m=m, n=n, k=k)
    for name in ("M1", "M16", "M100 N2880 K2880", "M4096 N2880 K2880", "dynamic M K4096"):
        m, n, k = _SHAPES[name]
        yield Case(name=f"shape e4m3 {name}", group="shape", m=m, n=n, k=k, lhs="e4m3", rhs="e4m3")
    for name, batch, m, n, k, shared in (
        ("B32 M128 K4096", 32, 128, 4096, 4096, False),
        ("B4 M100 K2880", 4, 100, 2880, 2880, False),
        ("B4 M1 K2880", 4, 1, 5760, 2880, False),
        ("B8 M128 one weight", 8, 128, 4096, 4096, True),
    ):
        yield Case(name=f"batch {name}", group="shape", m=m, n=n, k=k, batch=batch, shared=shared)


def _dynamic() -> Iterator[Case]:
    """Products with a number of rows that is known only at the call."""
    n = k = 2880
    for lhs, rhs in (("e4m3", "f4"), ("f6e2m3", "f6e3m2"), ("bf16", "f4"), ("bf16", "f6e2m3"),
                     ("f32", "e4m3"), ("bf16", "nvf4")):  # fmt: skip
        yield Case(name=f"dynamic M {lhs}x{rhs}", group="dynamic", m=-1, n=n, k=k, lhs=lhs, rhs=rhs)
    yield Case(name="dynamic M bias and SiLU e4m3xf4", group="dynamic", m=-1, n=n, k=k, lhs="e4m3",
               epilogue="bias_silu")  # fmt: skip
    yield Case(name="dynamic M quantized to f4", group="dynamic", m=-1, n=n, k=k,
               epilogue="quantize")  # fmt: skip
    for lhs in ("f4", "f6e2m3", "e4m3"):
        yield Case(name=f"dynamic M bf16 to {lhs} by f4", group="dynamic", m=-1, n=n, k=k, lhs=lhs,
                   source="bf16")  # fmt: skip
    for lhs in ("e4m3", "bf16"):
        yield Case(name=f"dynamic M experts {lhs}xf4", group="dynamic", m=-1, n=5760, k=k, lhs=lhs,
                   experts=32, choices=4)  # fmt: skip


def _float_scales() -> Iterator[Case]:
    """f32 scales, as checkpoints in fp8, int8 and int4 have them: for 128 elements along K, and for
    64 and 32."""
    pairs = (("bf16", "fp8s"), ("bf16", "i8s"), ("bf16", "i4s"), ("f32", "fp8s"), ("fp8s", "fp8s"),
             ("i8s", "i8s"))  # fmt: skip
    for lhs, rhs in pairs:
        for m in (*_ROWS, -1):
            rows = "dynamic M" if m < 0 else f"M{m}"
            yield Case(name=f"float scales {lhs}x{rhs} {rows}", group="float scales", m=m, n=4096,
                       k=4096, lhs=lhs, rhs=rhs)  # fmt: skip
    n, k, experts, choices = _MODELS["deepseek-r1"]["experts up"]
    for m in _ROWS:
        yield Case(name=f"float scales experts bf16xfp8s M{m}", group="float scales", m=m, n=n, k=k,
                   lhs="bf16", rhs="fp8s", experts=experts, choices=choices)  # fmt: skip
    for m in (128, 4096):
        for epilogue in ("bias_silu", "gelu_tanh", "bf16"):
            yield Case(name=f"float scales {epilogue} M{m}", group="float scales", m=m, n=4096,
                       k=4096, lhs="bf16", rhs="fp8s", epilogue=epilogue)  # fmt: skip
        for lhs, rhs in (("bf16", "fp8s"), ("f32", "i4s"), ("fp8s", "fp8s")):
            yield Case(name=f"float scales {lhs}x{rhs} blocks of 64 M{m}", group="float scales",
                       m=m, n=4096, k=4096, lhs=lhs, rhs=rhs, block=64)  # fmt: skip
        for name in ("o", "q_b"):
            n, k, *_ = _MODELS["deepseek-r1"][name]
            yield Case(name=f"float scales deepseek-r1 {name} M{m}", group="float scales", m=m, n=n,
                       k=k, lhs="bf16", rhs="fp8s")  # fmt: skip
    for m, rhs in product((1, 16, 128, 4096), ("fp8s", "i4s")):
        yield Case(name=f"float scales bf16x{rhs} blocks of 32 M{m}", group="float scales", m=m,
                   n=4096, k=4096, lhs="bf16", rhs=rhs, block=32)  # fmt: skip


def _squares() -> Iterator[Case]:
    """fp8 weights with a scale for 128 x 128 elements, as those of DeepSeek and of Qwen3."""
    for lhs, m in product(("bf16", "f32", "fp8s", "e4m3", "f4"), (*_ROWS, -1)):
        rows = "dynamic M" if m < 0 else f"M{m}"
        yield Case(name=f"squares {lhs} {rows}", group="squares", m=m, n=4096, k=4096, lhs=lhs,
                   rhs=SQUARES)  # fmt: skip
    for name, lhs, m in product(("o", "q_b", "kv_a", "experts up"), ("bf16", "fp8s"), _ROWS):
        n, k, experts, choices = _MODELS["deepseek-r1"][name]
        yield Case(name=f"squares deepseek-r1 {name} {lhs} M{m}", group="squares", m=m, n=n, k=k,
                   lhs=lhs, rhs=SQUARES, experts=experts, choices=choices)  # fmt: skip
    after: tuple[Epilogue, ...] = ("bias_silu", "gelu_tanh", "bf16")
    for m, epilogue in product((128, 4096), after):
        yield Case(name=f"squares then {epilogue} M{m}", group="squares", m=m, n=4096, k=4096,
                   lhs="bf16", rhs=SQUARES, epilogue=epilogue)  # fmt: skip


def _dense() -> Iterator[Case]:
    """Plain weights, as attention projections, the LM head and unquantized experts have them."""
    for lhs, rhs in (("bf16", "bf16"), ("f16", "f16"), ("f32", "bf16"), ("f16", "bf16")):
        for m in (*_ROWS, 512, -1):
            rows = "dynamic M" if m < 0 else f"M{m}"
            yield Case(name=f"dense {lhs}x{rhs} {rows}", group="dense", m=m, n=4096, k=4096,
                       lhs=lhs, rhs=rhs)  # fmt: skip
    for model, layer in (("gpt-oss-20b", "q"), ("gpt-oss-20b", "kv"), ("llama-3.1-70b", "up"),
                         ("llama-3.1-70b", "down")):  # fmt: skip
        n, k, _, _ = _MODELS[model][layer]
        for m in (*_ROWS, 512):
            yield Case(name=f"dense {model} {layer} M{m}", group="dense", m=m, n=n, k=k,
                       lhs="bf16", rhs="bf16")  # fmt: skip
    for m in (16, 128, 1000, 4096, -1):
        rows = "dynamic M" if m < 0 else f"M{m}"
        yield Case(name=f"dense f32 rounded to bf16 {rows}", group="dense", m=m, n=2880, k=2880,
                   lhs="bf16", rhs="bf16", source="f32")  # fmt: skip
    for epilogue in ("bias_silu", "gelu_tanh", "bf16"):
        for m in (1, 128, 4096):
            yield Case(name=f"dense {epilogue} M{m}", group="dense", m=m, n=4096, k=4096,
                       lhs="bf16", rhs="bf16", epilogue=epilogue)  # fmt: skip
    n, k, experts, choices = _MODELS["qwen3-30b-a3b"]["experts up"]
    for m in _ROWS:
        yield Case(name=f"dense experts M{m}", group="dense", m=m, n=n, k=k, lhs="bf16",
                   rhs="bf16", experts=experts, choices=choices)  # fmt: skip


def _forms() -> Iterator[Case]:
    for kind, m, n, k in (("f4", 4096, 4096, 4096), ("e4m3", 4096, 4096, 4096),
                          ("f4", 100, 2880, 2880)):  # fmt: skip
        yield Case(name=f"form floordiv {kind} M{m} K{k}", group="form", m=m, n=n, k=k, lhs=kind,
                   rhs=kind, form="floordiv")  # fmt: skip
    for kind, between in (("f4", "f32"), ("f4", "f16"), ("f4", "bf16"), ("e4m3", "bf16")):
        yield Case(name=f"form materialised {kind} to {between}", group="form", m=4096, n=4096,
                   k=4096, lhs=kind, rhs=kind, form="materialised", between=between)  # fmt: skip


def _epilogues() -> Iterator[Case]:
    for m, n, k in ((4096, 4096, 4096), (100, 2880, 2880), (1, 2880, 2880)):
        for lhs, rhs in (("f4", "f4"), ("e4m3", "f4"), ("bf16", "f4")):
            where = f"{lhs}x{rhs} M{m} K{k}"
            yield Case(name=f"epilogue bias and SiLU {where}", group="epilogue", m=m, n=n, k=k,
                       lhs=lhs, rhs=rhs, epilogue="bias_silu")  # fmt: skip
    named: dict[str, Epilogue] = {"GELU": "gelu", "GELU by tanh": "gelu_tanh", "ReLU": "relu",
                                  "to bf16": "bf16", "to f16": "f16"}  # fmt: skip
    for name, epilogue in named.items():
        for lhs in ("f4", "bf16"):
            yield Case(name=f"epilogue {name} {lhs}xf4 M100", group="epilogue", m=100, n=2880,
                       k=2880, lhs=lhs, epilogue=epilogue)  # fmt: skip
    yield Case(name="epilogue quantized to f4", group="epilogue", m=4096, n=4096, k=4096,
               epilogue="quantize")  # fmt: skip
    yield Case(name="epilogue quantized to e4m3", group="epilogue", m=4096, n=4096, k=4096,
               lhs="e4m3", rhs="f4", epilogue="quantize")  # fmt: skip
    for lhs, rhs in (("f4", "f4"), ("e4m3", "e4m3"), ("e4m3", "f4")):
        for m, n, k in ((4096, 4096, 4096), (100, 2880, 2880), (1, 2880, 2880)):
            for source in ("bf16", "f32"):
                yield Case(name=f"activations {source} to {lhs} by {rhs} M{m} K{k}",
                           group="activations", m=m, n=n, k=k, lhs=lhs, rhs=rhs,
                           source=source)  # fmt: skip


def _alone() -> Iterator[Case]:
    for source in FLOATS:
        for kind in _ELEMENTS:
            yield Case(name=f"quantize {source} to {kind}", group="quantize", m=4096, n=0, k=4096,
                       lhs=kind, source=source, form="quantize")  # fmt: skip
            yield Case(name=f"dequantize {kind} to {source}", group="quantize", m=4096, n=0,
                       k=4096, lhs=kind, between=source, form="dequantize")  # fmt: skip


def _models() -> Iterator[Case]:
    for model, layers in _MODELS.items():
        for layer, (n, k, experts, choices) in layers.items():
            for m in _ROWS:
                for lhs, rhs in _MODEL_PAIRS:
                    yield Case(name=f"model {model} {layer} M{m} {lhs}x{rhs}", group="model", m=m,
                               n=n, k=k, lhs=lhs, rhs=rhs, experts=experts,
                               choices=choices)  # fmt: skip
