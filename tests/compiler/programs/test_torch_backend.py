"""`torch.compile(backend="mxc")`: the numbers of torch, products with weights in our kernels."""

import json
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from mxc import compile as compile_model
from mxc import torch_backend
from mxc.artifact.manifest import REPORT
from mxc.compiler.artifact import Artifact
from mxc.compiler.report import Report
from mxc.errors import RequestError

ROOT = Path(__file__).resolve().parents[3]
CONFIG = LlamaConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=128,
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Report]]:
    """The reports of what is compiled."""
    found: list[Report] = []
    own = compile_model

    def compiling(*arguments: Any, **options: Any) -> Artifact:
        artifact = own(*arguments, **options | {"listing": True})
        found.append(Report.from_dict(json.loads((artifact.path / REPORT).read_text())))
        return artifact

    monkeypatch.setattr(torch_backend, "compile", compiling)
    yield found
    torch._dynamo.reset()


def test_a_language_model_of_transformers(made: list[Report]) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    compiled = torch.compile(model, backend=torch_backend.compile_graph)
    tokens = torch.randint(0, 128, (1, 9))
    with torch.no_grad():
        wanted = model(tokens, use_cache=False).logits
        for _ in range(2):
            found = compiled(tokens, use_cache=False).logits
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    (report,) = made
    ours = {one.name for one in report.matmuls if not one.reason and not one.fallback}
    layer = "model.layers.0"
    parts = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    assert {"lm_head", *(f"{layer}.{part}" for part in parts)} <= ours
    assert len(ours) == len({one.name for one in report.matmuls}), "the rest is ours too"
    kernels = [one.kernel for one in report.operations]
    assert any(each.startswith("mxc_attention_2x2x16_f32_dense") for each in kernels)


def test_types_and_shapes(made: list[Report]) -> None:
    linear = torch.nn.Linear(32, 16).to(torch.bfloat16)
    compiled = torch.compile(linear, backend=torch_backend.compile_graph)
    with torch.no_grad():
        for rows in (3, 3, 5, 9, 2, 5):
            x = torch.randn(rows, 32, dtype=torch.bfloat16)
            found = compiled(x)
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found, linear(x), rtol=2e-2, atol=2e-2)
    assert len(made) == 2, "the second number of rows makes it dynamic"


def test_dynamic_sizes(made: list[Report]) -> None:
    """Two sizes that torch.compile marks, one of them a number that the graph reads."""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(32, 16)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            rows = self.lin(x).reshape(x.shape[0] * x.shape[1], 16)
            return torch.cat([rows, y]) / x.shape[1]

    module = Module().eval()
    compiled = torch.compile(module, backend=torch_backend.compile_graph, dynamic=True)
    with torch.no_grad():
        for batch, length, more in ((2, 3, 4), (5, 7, 2), (3, 2, 9)):
            x, y = torch.randn(batch, length, 32), torch.randn(more, 16)
            torch.testing.assert_close(compiled(x, y), module(x, y), rtol=1e-5, atol=1e-6)
    (report,) = made
    assert [one.name for one in report.matmuls if not one.reason] == ["lin"]


def test_gradients_are_refused() -> None:
    linear = torch.nn.Linear(4, 4)
    with pytest.raises(RequestError, match=r"has no gradients; call the module under"):
        torch_backend.compile_graph(
            torch.fx.symbolic_trace(linear), [torch.ones(2, 4), linear.weight]
        )


def test_torch_finds_it_by_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["mxc"].partition(":")
    assert getattr(import_module(module), name) is torch_backend.compile_graph


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


def test_a_module_that_changes_buffers_is_refused() -> None:
    compiled = torch.compile(Counter(), backend=torch_backend.compile_graph)
    message = 'changes its buffers count, which backend "mxc" does not write back'
    with torch.no_grad(), pytest.raises(RequestError, match=message):
        compiled(torch.ones(4))
