"""Record what Kimi K3's own code makes of the checkpoint of kimi_k3.py.

    python -m tests.models.architectures.kimi_k3_vectors FOLDER OUTPUT

FOLDER has modeling_kimi_linear.py and configuration_kimi_k3.py of moonshotai/Kimi-K3; einops must
be installed. The code calls flash-linear-attention, which needs a GPU: transformers' rule of Kimi
Linear takes its place, behind the bounded gate as its ops/kda/gate.py defines it. In float64 every
float32 of the sources is float64.
"""

import argparse
import hashlib
import importlib
import inspect
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers.models.kimi_linear import modeling_kimi_linear as kimi_linear

from tests.models.architectures.kimi_k3 import RECORDED, TEXT, VOCABULARY, digest, write
from tests.models.compared import GENERATED, PROMPT

FILES = ("configuration_kimi_k3.py", "modeling_kimi_linear.py")


class ShortConvolution(nn.Conv1d):
    """A causal convolution of each column, then SiLU."""

    def __init__(self, hidden_size: int, kernel_size: int, activation: str) -> None:
        assert activation == "silu"
        super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=False)

    def forward(self, x: torch.Tensor, **unused: Any) -> tuple[torch.Tensor, None]:
        padded = functional.pad(x.mT, (self.kernel_size[0] - 1, 0))
        return functional.silu(super().forward(padded)).mT, None


class GatedNorm(nn.Module):
    """RMS norm times a sigmoid."""

    def __init__(self, hidden_size: int, eps: float, activation: str) -> None:
        assert activation == "sigmoid"
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden_size)), eps

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        normed = functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return normed * torch.sigmoid(gate)


def _library(dtype: torch.dtype) -> dict[str, types.ModuleType]:
    """What the code imports of flash-linear-attention, by the names of its modules."""
    rules: dict[str, Any] = {"torch": torch}
    for function in (kimi_linear.l2norm, kimi_linear.recurrent_kimi_delta_attention):
        source = inspect.getsource(inspect.unwrap(function))
        exec(_in(source[source.index("def ") :], dtype), rules)

    def rule(*, q: Any, k: Any, v: Any, g: Any, beta: Any, A_log: Any, dt_bias: Any,
             lower_bound: float, use_gate_in_kernel: bool, use_beta_sigmoid_in_kernel: bool,
             use_qk_l2norm_in_kernel: bool, **unused: Any) -> Any:  # fmt: skip
        assert use_gate_in_kernel
        assert use_beta_sigmoid_in_kernel
        heads, depth = g.shape[-2:]
        steep = A_log.view(heads, 1).exp() * (g + dt_bias.view(heads, depth))
        decay = lower_bound * torch.sigmoid(steep)
        return rules["recurrent_kimi_delta_attention"](
            q, k, v, decay, beta.sigmoid(), None, True, use_qk_l2norm_in_kernel
        )

    found: dict[str, dict[str, Any]] = {
        "fla.modules": {"FusedRMSNormGated": GatedNorm, "ShortConvolution": ShortConvolution},
        "fla.ops.kda": {"chunk_kda": rule, "fused_recurrent_kda": rule},
        "fla.ops.utils.index": dict.fromkeys(
            ("prepare_cu_seqlens_from_mask", "prepare_lens_from_mask")
        ),
        "fla.utils": {"tensor_cache": lambda function: function},
    }
    modules = {}
    for name, members in {"fla": {}, "fla.ops": {}, "fla.ops.utils": {}, **found}.items():
        modules[name] = types.ModuleType(name)
        vars(modules[name]).update(members)
    return modules


def _in(source: str, dtype: torch.dtype) -> str:
    if dtype == torch.float32:
        return source
    return source.replace("torch.float32", "torch.float64").replace(".float()", ".double()")


def load(folder: Path, values: dict[str, torch.Tensor], dtype: torch.dtype) -> Any:
    """The model of the code in `folder`, with these weights."""
    sys.modules.update(_library(dtype))
    # A name that transformers no longer has; what it records is not asked for.
    vars(transformers.utils.generic).setdefault("OutputRecorder", lambda *a, **k: None)
    package = f"kimi_k3_{dtype}".replace(".", "_")
    with tempfile.TemporaryDirectory() as place:
        sys.path.insert(0, place)
        (Path(place) / package).mkdir()
        for file in FILES:
            (Path(place) / package / file).write_text(_in((folder / file).read_text(), dtype))
        configs, models = (
            importlib.import_module(f"{package}.{file.removesuffix('.py')}") for file in FILES
        )
        sys.path.remove(place)
    config = configs.KimiLinearConfig(
        **{key: value for key, value in TEXT.items() if key != "quantization_config"}
    )
    model = models.KimiLinearForCausalLM(config)
    heads = TEXT["linear_attn_config"]["num_heads"]
    given = {k: v[:heads] if k.endswith("A_log") else v for k, v in values.items()}
    model.load_state_dict(given)
    model.config._attn_implementation = "eager"
    return model.to(dtype).eval()


def logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """The logits [T, vocabulary] after each token."""
    inner, count = model.model, len(tokens)
    mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        x = inner.embed_tokens(torch.tensor([tokens]))
        blocks = x.new_zeros(count, 0, x.shape[-1])
        for layer in inner.layers:
            own = None if layer.is_linear_attn else mask.to(x)
            x, blocks = layer(x, attention_mask=own, block_residual=blocks)
        found: torch.Tensor = model.lm_head(inner.norm(inner._apply_output_attn_res(x, blocks)))
    return found[0]


def main() -> None:
    """Generate from a prompt in float64, and write the file."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("output", type=Path)
    folder, output = (getattr(arguments.parse_args(), each) for each in ("folder", "output"))
    with tempfile.TemporaryDirectory() as place:
        values = write(Path(place) / "checkpoint")
    models = {each: load(folder, values, each) for each in (torch.float64, torch.float32)}
    random = np.random.default_rng(0)
    tokens = [int(each) for each in random.integers(0, VOCABULARY, PROMPT)]
    for _ in range(GENERATED):
        tokens.append(int(logits(models[torch.float64], tokens)[-1].argmax()))
    exact, rounded = (logits(model, tokens).numpy() for model in models.values())
    sources = [hashlib.sha256((folder / each).read_bytes()).hexdigest() for each in FILES]
    np.savez_compressed(
        output / RECORDED.name,
        tokens=np.array(tokens),
        float64=exact,
        float32=rounded,
        weights=digest(values),
        sources=sources,
    )
    size = np.sqrt(np.mean(exact**2))
    print(f"{RECORDED.name}: float32 differs by {np.abs(rounded - exact).max() / size:.1e}")


if __name__ == "__main__":
    main()
