"""What each mode of activations means, and what bf16 costs.

The meaning: what meets a weight in a contraction (the inputs of q, k, v, o, of the router, of both
products of the experts and of the head) and what is kept in the key/value cache is rounded to
bfloat16, to nearest, ties to even. In the modes that quantize, what meets a weight in blocks is
quantized in blocks of 32 instead: the inputs of the experts' products, and with --quantize-dense
all but the router's and the cache. Everything else is float32: products, sums, norms, softmax,
rotation, activation, residual. Two claims follow.

It is that and nothing else. transformers' float32 model that rounds the same operands gives the
same logits, except where an operand lies so near the middle of two bfloat16 that the last bits of
a float32 decide. Ties of bfloat16 are 2^-7 apart and two float32 programs differ by some 2^-22,
relatively, so that a rounding flips once in 2^14; a token has about 1000 of them, so one in twenty
tokens, and what comes from it, may differ. The ties of int8 lie closer at the top of a block and
further apart below, those of the other formats further apart everywhere. Leaving one operand
unrounded changes every token, and so does another format. Only where all that follows is quantized,
a change of less than half a step goes under: that of the router in the head's input, in about half
of the tokens.

Rounding to bfloat16 costs no more than its roundings. It has 8 significant bits: numbers in [1, 2)
are 2^-7 apart, so rounding to nearest changes a number by at most 2^-8 of itself. The float32
model, with each of the same operands times 1 + d for random d in +-2^-8, shows how far that
carries: rounding must not carry further. (d is drawn evenly: 0.58 * 2^-8 in root mean square,
against 0.42 * 2^-8 of rounding to nearest and 0.85 * 2^-8 of cutting off.)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import GptOssForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions
from mxc.formats.reference import dequantize, quantize
from tests.models.conftest import Compiled

CASES: dict[str, dict[str, Any]] = {
    "bf16-weights": {
        "options": GptOssOptions(vocab_size=257),
        "length": 48,
    },
    "f16-weights": {
        "options": GptOssOptions(
            hidden_size=96,
            num_hidden_layers=1,
            num_local_experts=5,
            vocab_size=193,
            dense_dtype="F16",
        ),
        "length": 48,
    },
}
for _case in CASES.values():
    _case["activations"] = "bf16"

#: Mode of activations, and of dense weights.
QUANTIZED = {
    "i8": None,
    "mxfp4": None,
    "mxfp6": None,
    "mxfp6e3m2": None,
    "mxint8": "mxfp8",
    "mxfp8": "mxint8",
}
MODES: dict[str, dict[str, Any]] = CASES | {
    f"{mode}-{dense}": {
        "options": GptOssOptions(
            num_hidden_layers=1, vocab_size=131, tie_word_embeddings=mode == "mxfp8"
        ),
        "length": 32,
        "activations": mode,
        "quantize_dense": dense,
    }
    for mode, dense in QUANTIZED.items()
}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_mode = pytest.mark.parametrize("case", MODES.values(), ids=MODES)

Change = Callable[[torch.Tensor], torch.Tensor]
Rows = NDArray[np.float64]

OPERANDS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "keys",
    "values",
    "o_proj",
    "router",
    "gate_up",
    "down",
    "lm_head",
)


def nearest(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def cut_off(x: torch.Tensor) -> torch.Tensor:
    return (x.contiguous().view(torch.int32) & -0x10000).view(torch.float32)


def int8(x: torch.Tensor) -> torch.Tensor:
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    elements = torch.where(scale > 0, blocks * (1 / scale), 0).round()
    return (elements * scale).reshape(x.shape)


def mx(format: str, recipe: str) -> Change:
    def change(x: torch.Tensor) -> torch.Tensor:
        q = quantize(x.contiguous().numpy(), format, recipe=recipe)
        return torch.from_numpy(dequantize(q))

    return change


#: Mode -> what it does to what meets weights in blocks; and one that is mistaken for it.
BLOCKS = {
    "bf16": (nearest, cut_off),
    "i8": (int8, mx("mxint8", "floor")),
    "mxfp4": (mx("mxfp4", "even"), mx("mxfp4", "floor")),
    "mxfp6": (mx("mxfp6e2m3", "even"), mx("mxfp6e3m2", "even")),
    "mxfp6e3m2": (mx("mxfp6e3m2", "even"), mx("mxfp6e2m3", "even")),
    "mxfp8": (mx("mxfp8e4m3", "rceil"), mx("mxfp8e5m2", "rceil")),
    "mxint8": (mx("mxint8", "rceil"), int8),
}


def meaning(case: dict[str, Any]) -> dict[str, Change]:
    """What the mode of a case does to each operand."""
    blocks, _ = BLOCKS[case["activations"]]
    floats: tuple[str, ...] = ("router", "keys", "values")
    if not case.get("quantize_dense"):
        floats = tuple(name for name in OPERANDS if name not in ("gate_up", "down"))
    return {name: nearest if name in floats else blocks for name in OPERANDS}


@contextmanager
def operands(model: GptOssForCausalLM, changes: dict[str, Change]) -> Iterator[None]:
    """Change the operands of the contractions with weights, and what attention is given."""

    def change(name: str, x: torch.Tensor) -> torch.Tensor:
        return changes[name](x) if name in changes else x

    hooks = []
    experts = []
    for path, module in model.named_modules():
        name = {"experts": "gate_up"}.get(path.split(".")[-1], path.split(".")[-1])
        if name in OPERANDS:
            hooks.append(
                module.register_forward_pre_hook(
                    lambda _, inputs, name=name: (change(name, inputs[0]), *inputs[1:])
                )
            )
        if name == "gate_up":
            module._apply_gate = lambda x, gate=module._apply_gate: change("down", gate(x))
            experts.append(module)
    attend = modeling_gpt_oss.eager_attention_forward

    def attend_to_changed(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **more: Any,
    ) -> Any:
        return attend(module, query, change("keys", key), change("values", value), *rest, **more)

    modeling_gpt_oss.eager_attention_forward = attend_to_changed
    try:
        yield
    finally:
        modeling_gpt_oss.eager_attention_forward = attend
        for hook in hooks:
            hook.remove()
        for module in experts:
            del module._apply_gate


def logits(model: GptOssForCausalLM, texts: list[list[int]], changes: dict[str, Change]) -> Rows:
    """The model's logits with changed operands, float64 [texts, tokens, vocabulary]."""
    with operands(model, changes), torch.no_grad():
        return model(torch.tensor(texts), use_cache=False).logits.double().numpy()


def rms(x: Rows) -> float:
    return float(np.sqrt(np.mean(x**2)))


def agreeing(found: NDArray[np.float32], wanted: Rows) -> float:
    """The share of rows that are the same up to float32, as in the tests of float32."""
    return float(np.mean(np.abs(found - wanted).max(axis=-1) <= 2e-5 * rms(wanted)))


@each_mode
def test_every_operand_is_rounded_and_nothing_else(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """Texts of one token: no flip of a token can reach another, so nearly all rows agree."""
    built = compiled(case)
    texts = [[token] for token in range(built.vocabulary)]
    sequence, rows = built.model.sequence(), []
    for text in texts:
        sequence.reset()
        rows.append(sequence.feed(text)[0])
    found = np.stack(rows)
    meant = meaning(case)
    assert agreeing(found, logits(built.reference, texts, meant)[:, 0]) >= 0.8
    most = 0.75 if case.get("quantize_dense") else 0.2
    for name in OPERANDS:
        others = {other: change for other, change in meant.items() if other != name}
        assert agreeing(found, logits(built.reference, texts, others)[:, 0]) <= most, name
    right, wrong = BLOCKS[case["activations"]]
    mistaken = {name: wrong if change is right else change for name, change in meant.items()}
    # Of mxfp4, two recipes differ in one block of six; a token has six blocks, and is the same in
    # a third of the cases.
    assert agreeing(found, logits(built.reference, texts, mistaken)[:, 0]) <= max(most, 0.5)


def spread(difference: Rows) -> float:
    """The median over the rows of their root mean square.

    A row in which a change makes the router choose another expert is far off: the median is not
    moved by few of those.
    """
    return float(np.median(np.sqrt(np.mean(difference**2, axis=-1))))


@each_mode
def test_long_texts_agree_too(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """In one call, and token by token. A flip spreads through attention to the tokens after it.

    It arrives there as an error of one operand in thousands, and flips others: a quarter of what
    all the roundings cost is allowed. A cache that is not rounded is three quarters away.
    """
    built = compiled(case)
    assert built.model.manifest.model.pages[0].dtype == "bf16"
    wanted = logits(built.reference, [built.tokens], meaning(case))[0]
    one_by_one = built.model.sequence()
    for found in (
        built.model.sequence().feed(built.tokens),
        np.concatenate([one_by_one.feed([token]) for token in built.tokens]),
    ):
        assert spread(found - wanted) <= 0.25 * spread(wanted - built.wanted)


@each_case
def test_no_further_from_float32_than_the_roundings_carry(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    built = compiled(case)
    random = torch.Generator().manual_seed(0)

    def perturb(x: torch.Tensor) -> torch.Tensor:
        return x * (1 + (2 * torch.rand(x.shape, generator=random) - 1) * 2**-8)

    perturbed = [
        logits(built.reference, [built.tokens], dict.fromkeys(OPERANDS, perturb))[0] - built.wanted
        for _ in range(6)
    ]
    found = built.model.sequence().feed(built.tokens) - built.wanted
    assert spread(found) <= max(spread(p) for p in perturbed)
    assert np.abs(found).max() <= max(np.abs(p).max() for p in perturbed)
    # The bound is tight enough to tell rounding to nearest from cutting off.
    cut: dict[str, Change] = dict.fromkeys(OPERANDS, cut_off)
    cost = logits(built.reference, [built.tokens], cut)[0] - built.wanted
    assert spread(cost) > max(spread(p) for p in perturbed)
