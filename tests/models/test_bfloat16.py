"""What activations="bf16" means, and what it costs.

The meaning: what meets a weight in a contraction (the inputs of q, k, v, o, of the router, of both
products of the experts and of the head) and what is kept in the key/value cache is rounded to
bfloat16, to nearest, ties to even. Everything else is float32: products, sums, norms, softmax,
rotation, activation, residual. Two claims follow.

It is that and nothing else. transformers' float32 model that rounds the same operands gives the
same logits, except where an operand lies so near the middle of two bfloat16 that the last bits of
a float32 decide. Ties of bfloat16 are 2^-7 apart and two float32 programs differ by some 2^-22,
relatively, so that a rounding flips once in 2^14; a token has about 1000 of them, so one in twenty
tokens, and what comes from it, may differ. Leaving one operand unrounded changes every token.

It costs no more than its roundings. bfloat16 has 8 significant bits: numbers in [1, 2) are 2^-7
apart, so rounding to nearest changes a number by at most 2^-8 of itself. The float32 model, with
each of the same operands times 1 + d for random d in +-2^-8, shows how far that carries: rounding
must not carry further. (d is drawn evenly: 0.58 * 2^-8 in root mean square, against 0.42 * 2^-8 of
rounding to nearest and 0.85 * 2^-8 of cutting off.)
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

from mxc.compiler.checkpoints.synthetic import GptOssOptions

CASES: dict[str, dict[str, Any]] = {
    "bf16-weights": {
        "options": GptOssOptions(vocab_size=257),
        "length": 48,
        "chunk": 11,
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
        "chunk": 16,
    },
}
for _case in CASES.values():
    _case["activations"] = "bf16"

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)

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

    def attend_to_changed(module, query, key, value, *rest, **more):
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


@each_case
def test_every_operand_is_rounded_and_nothing_else(case, compiled) -> None:
    """Texts of one token: no flip of a token can reach another, so nearly all rows agree."""
    built = compiled(case)
    texts = [[token] for token in range(built.vocabulary)]
    sequence, rows = built.model.sequence(), []
    for text in texts:
        sequence.reset()
        rows.append(sequence.feed(text)[0])
    found = np.stack(rows)
    rounded = dict.fromkeys(OPERANDS, nearest)
    assert agreeing(found, logits(built.reference, texts, rounded)[:, 0]) >= 0.8
    for name in OPERANDS:
        others = {other: nearest for other in OPERANDS if other != name}
        assert agreeing(found, logits(built.reference, texts, others)[:, 0]) <= 0.2, name
    cut = dict.fromkeys(OPERANDS, cut_off)
    assert agreeing(found, logits(built.reference, texts, cut)[:, 0]) <= 0.2


def spread(difference: Rows) -> float:
    """The median over the rows of their root mean square.

    A row in which a change makes the router choose another expert is far off: the median is not
    moved by few of those.
    """
    return float(np.median(np.sqrt(np.mean(difference**2, axis=-1))))


@each_case
def test_long_texts_agree_too(case, compiled) -> None:
    """Prefill in chunks, and decode. A flip spreads through attention to the tokens behind it.

    It arrives there as an error of one operand in thousands, and flips others: a quarter of what
    all the roundings cost is allowed. A cache that is not rounded is three quarters away.
    """
    built = compiled(case)
    assert built.model.manifest.model.cache.dtype == "bf16"
    rounded = dict.fromkeys(OPERANDS, nearest)
    wanted = logits(built.reference, [built.tokens], rounded)[0]
    one_by_one = built.model.sequence()
    for found in (
        built.model.sequence().feed(built.tokens),
        np.concatenate([one_by_one.feed([token]) for token in built.tokens]),
    ):
        assert spread(found - wanted) <= 0.25 * spread(wanted - built.wanted)


@each_case
def test_no_further_from_float32_than_the_roundings_carry(case, compiled) -> None:
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
    cut = dict.fromkeys(OPERANDS, cut_off)
    cost = logits(built.reference, [built.tokens], cut)[0] - built.wanted
    assert spread(cost) > max(spread(p) for p in perturbed)
