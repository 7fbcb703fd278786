"""Programs from torch that change buffers: these are arguments, which a Stateful keeps."""

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

import mxc
from mxc.errors import CompileError, RequestError
from mxc.runtime.session import Model

POSITIONS = 12


class Cache(torch.nn.Module):
    """Two caches of rows that are alike at first, and the number of rows in them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 8, 4), persistent=False)
        self.register_buffer("values", torch.zeros(2, 8, 4), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, at, x)
        self.values.index_copy_(1, at, 2 * x)
        self.count.add_(at.shape[0])
        return (self.keys @ self.values.transpose(1, 2)).sum(0) + self.count


class Exchange(torch.nn.Module):
    """Two buffers of which each becomes what the other was, one of them with an addition."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.a.clone()
        self.a.copy_(self.b + x)
        self.b.copy_(before)
        return self.a - 2 * self.b


class Kinds(torch.nn.Module):
    """Buffers of other types; one is returned too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(4, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.sums.add_(x)
        self.seen.logical_or_(x > 0)
        return self.sums, self.sums.flip(0) * self.seen


RANDOM = torch.Generator().manual_seed(0)


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=RANDOM)


#: A module, and the arguments of its calls, one after another.
MODULES: dict[str, tuple[type[torch.nn.Module], list[tuple[torch.Tensor, ...]]]] = {
    "cache": (
        Cache,
        [(some(2, n, 4), torch.arange(n) + at) for n, at in ((3, 0), (2, 3), (1, 5), (3, 4))],
    ),
    "exchange": (Exchange, [(some(4),) for _ in range(4)]),
    "kinds": (Kinds, [(some(4).bfloat16(),) for _ in range(3)]),
}


def language_model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    programs: dict[str, Any] = {}
    for name, (module, calls) in MODULES.items():
        rows = torch.export.Dim("rows", min=1, max=8)
        sizes = ({1: rows}, {0: rows}) if name == "cache" else None
        programs[name] = torch.export.export(module(), calls[0], dynamic_shapes=sizes)
    decoder = language_model()
    decoder.generation_config.cache_implementation = "static"
    decoder.generation_config.cache_config = {
        "batch_size": 1, "max_cache_len": POSITIONS, "device": "cpu"
    }  # fmt: skip
    tokens = torch.export.Dim("tokens", max=POSITIONS - 1)
    programs["decoder"] = TorchExportableModuleForDecoderOnlyLM(decoder).export(
        input_ids=torch.ones(1, 3, dtype=torch.int64),
        cache_position=torch.arange(3),
        dynamic_shapes={"input_ids": {1: tokens}, "cache_position": {0: tokens}},
    )
    programs["without"] = torch.export.export(torch.nn.ReLU(), (some(4),))
    folder = tmp_path_factory.mktemp("states")
    return mxc.load(mxc.compile(programs, output=folder / "all.mxc", listing=False).path)


def as_array(value: torch.Tensor) -> Any:
    if value.dtype != torch.bfloat16:
        return value.numpy()
    return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def near(found: Any, wanted: torch.Tensor) -> None:
    assert found.shape == tuple(wanted.shape)
    np.testing.assert_allclose(
        found.astype(np.float32), wanted.float().numpy(), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", MODULES)
def test_calls_go_on_with_what_the_last_has_left(model: Model, name: str) -> None:
    kind, calls = MODULES[name]
    module, function, other = kind(), model.stateful(name), model.stateful(name)
    for number, arguments in enumerate(calls):
        wanted = module(*arguments)
        if number < 2:
            other(*map(as_array, arguments))
        found = function(*map(as_array, arguments))
        results = wanted if isinstance(wanted, tuple) else (wanted,)
        for one, each in zip(found, results, strict=True):
            near(one, each)
        states = function.states
        for key, value in module.named_buffers():
            near(states[key], value)
    # What one keeps, no other sees.
    first = next(iter(function.states))
    assert not np.array_equal(other.states[first], function.states[first])


def test_a_decoder_of_transformers_with_a_static_cache(model: Model) -> None:
    ids = torch.randint(3, 40, (1, POSITIONS), generator=RANDOM)
    with torch.no_grad():
        wanted = language_model()(ids).logits[0].numpy()
    step = model.stateful("decoder")
    for first, last in itertools.pairwise((0, 5, 6, 7, 10, POSITIONS)):
        (found,) = step(ids[:, first:last].numpy(), np.arange(first, last))
        np.testing.assert_allclose(found[0], wanted[first:last], rtol=1e-5, atol=1e-6)
    assert step.states["key_cache_1"].shape == (1, 2, POSITIONS, 16)


@pytest.mark.parametrize("name", ["cache", "exchange"])
def test_states_on_a_gpu(tmp_path: Path, name: str) -> None:
    kind, calls = MODULES[name]
    program = torch.export.export(kind(), calls[0])
    made = mxc.compile(program, target="gfx950", output=tmp_path / "x.mxc", listing=False)
    module, function = kind(), mxc.load(made.path, device="simulator").stateful()
    for arguments in (calls[0], calls[0]):
        near(function(*map(as_array, arguments))[0], module(*arguments))
    for key, value in module.named_buffers():
        near(function.states[key], value)


def test_states_may_begin_with_other_numbers(model: Model) -> None:
    module = Exchange()
    module.a += 3
    function = model.stateful("exchange", {"a": np.full(4, 3, np.float32)})
    x = some(4)
    near(function(as_array(x))[0], module(x))


def test_a_call_of_the_function_takes_states_first_and_returns_them(model: Model) -> None:
    assert model.functions["exchange"].input_names == ("a", "b", "x")
    assert model.functions["exchange"].output_names == ("a", "b", "")
    assert model.functions["exchange"].in_place == ((0, 0), (1, 1))
    a, b, x = (as_array(some(4)) for _ in range(3))
    kept = a.copy()
    left, right, found = model.call("exchange", a, b, x)
    np.testing.assert_array_equal(a, kept)
    np.testing.assert_array_equal(left, b + x)
    np.testing.assert_array_equal(right, a)
    np.testing.assert_allclose(found, left - 2 * right, rtol=1e-6)


def test_what_does_not_fit_is_refused(model: Model) -> None:
    with pytest.raises(RequestError, match="without: has no argument that it changes in place"):
        model.stateful("without")
    with pytest.raises(RequestError, match="exchange: has no state 'c'; its states: a, b"):
        model.stateful("exchange", {"c": 1})
    with pytest.raises(RequestError, match=r"exchange, argument 1 \(b\): wants f32 \[4\]"):
        model.stateful("exchange", {"b": np.zeros(3, np.float32)})
    message = r"exchange: takes 1 arguments beside its states \(f32 \[4\]\), got 2"
    with pytest.raises(RequestError, match=message):
        model.stateful("exchange")(1, 2)


def test_a_buffer_that_begins_with_other_numbers_is_refused(tmp_path: Path) -> None:
    module = Exchange()
    module.a += 1
    program = torch.export.export(module, (some(4),))
    with pytest.raises(CompileError, match="buffer a, which the program changes, does not begin"):
        mxc.compile(program, output=tmp_path / "x.mxc")
