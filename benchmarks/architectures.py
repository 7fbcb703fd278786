"""Compile two layers of every architecture, at published widths, for a CPU and for gfx950.

    python benchmarks/architectures.py [--only NAME ..] [--target cpu --target gfx950] [--plain]
    python benchmarks/architectures.py --decode [--only NAME ..] [--plain] [--threads 2]

No weights are needed: checkpoints are headers of bf16 tensors. Matrices are quantized to mxfp8
where possible (--quantize-dense), or stay bf16 (--plain). Every compilation runs in its own process
with --strict. The script prints its processor time and wall time, errors, and each product that no
kernel of mxc computes; the exit code is 1 if there is an error or such a product. Configs are those
of transformers' classes, with the sizes of the named model.

With --decode, models with recurrent or convolution states are cut to four layers (three with states
and one of full attention, few experts, a small vocabulary) and compiled for this CPU with random
weights. Eight decode steps and a read of DRAM alternate in one process. A row of the table has the
bytes that a token moves according to the report; time and rate of a token and the rate of DRAM, of
the fastest repetition and then of the median; the token's shares of both DRAM rates; bytes, time
and rate of the operations of attention in the fastest profile, and their share of the best DRAM
rate; and the cores that others used. The figures hold only if other processes and the host of a
virtual machine were idle.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers

from mxc.artifact.manifest import REPORT
from mxc.compiler.checkpoints.synthetic.decoder import write_decoder
from mxc.compiler.models.architectures import ARCHITECTURES
from mxc.runtime.other_load import OtherLoad
from mxc.runtime.session import load

#: Maximum sequence length that is compiled, in tokens.
LENGTH = 4096
#: Tokens of the prompt that precedes the measured decode steps.
_PROMPT = 16
#: Decode steps of one repetition, one right after the other, as when a model generates.
_TOKENS = 8
#: Profiled runs of `mxc bench`, of which the one with the fastest attention counts.
_PROFILES = 3

SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
GEMMA4 = {
    "hidden_size_per_layer_input": 0,
    "sliding_window": 1024,
    "final_logit_softcapping": 30.0,
}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}


def sizes(
    hidden: int, wide: int, heads: int, shared: int, vocabulary: int, depth: int | None = None
) -> dict[str, Any]:
    """Return a dense model's fields. `wide`: MLP; `shared`: key/value heads; `depth`: of a head."""
    found = {
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "vocab_size": vocabulary,
    }
    return found if depth is None else found | {"head_dim": depth}


def experts(count: int, chosen: int, width: int, name: str = "num_experts") -> dict[str, Any]:
    """Return the fields of experts. `width`: of their MLPs; `name`: the field of the count."""
    return {name: count, "num_experts_per_tok": chosen, "moe_intermediate_size": width}


#: The whole config of moonshotai/Kimi-K3, for which transformers has no class, cut to two layers:
#: one of each kind of attention and of MLP, and two blocks of attention residuals.
KIMI_K3: dict[str, Any] = sizes(7168, 33792, 96, 96, 163840) | {
    "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "attn_res_block_size": 1,
    "eos_token_id": 163586, "first_k_dense_replace": 1, "hidden_act": "situ", "kv_lora_rank": 512,
    "latent_moe_use_norm": True, "max_position_embeddings": 1048576, "mla_use_output_gate": True,
    "model_type": "kimi_linear", "moe_intermediate_size": 3072, "moe_renormalize": True,
    "num_expert_group": 1, "num_experts": 896, "num_experts_per_token": 16, "num_hidden_layers": 2,
    "num_shared_experts": 2, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-5, "routed_expert_hidden_size": 3584, "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False, "topk_group": 1, "v_head_dim": 128,
    "linear_attn_config": {
        "full_attn_layers": [2], "gate_lower_bound": -5.0, "head_dim": 128, "kda_layers": [1],
        "num_heads": 96, "short_conv_kernel_size": 4, "use_full_rank_gate": True,
    },
}  # fmt: skip

#: Row of the table: model type, and a variant after a comma -> name of the model whose sizes are
#: used, and the config fields that differ from the defaults of transformers' class.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("AFM-4.5B", sizes(2560, 18432, 20, 4, 128004)),
    "cohere2": ("Command R7B", sizes(4096, 14336, 32, 8, 256000, 128) | SLIDING),
    "cwm": ("CWM 32B", SLIDING),
    "deepseek_v2": (
        "DeepSeek-V2-Lite",
        sizes(2048, 10944, 16, 16, 102400)
        | experts(64, 6, 1408, "n_routed_experts")
        | {"q_lora_rank": None, "n_shared_experts": 2, "first_k_dense_replace": 1}
        | {"max_position_embeddings": 163840},
    ),
    "deepseek_v3": ("DeepSeek-V3", {"first_k_dense_replace": 1}),
    "dots1": (
        "dots.llm1",
        sizes(4096, 10944, 32, 32, 152064)
        | experts(128, 6, 1408, "n_routed_experts")
        | {"n_shared_experts": 2},
    ),
    "ernie4_5": ("ERNIE-4.5-0.3B", sizes(1024, 3072, 16, 2, 103424, 128)),
    "ernie4_5_moe": (
        "ERNIE-4.5-21B-A3B",
        sizes(2560, 12288, 20, 4, 103424)
        | {"moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536}
        | {"moe_num_shared_experts": 2},
    ),
    "exaone4": (
        "EXAONE-4.0-32B",
        sizes(5120, 27392, 40, 8, 102400, 128) | SLIDING | {"sliding_window": 4096},
    ),
    "flex_olmo": ("FlexOlmo-7x7B", sizes(4096, 11008, 32, 32, 100352)),
    "gemma2": ("Gemma 2 9B", sizes(3584, 14336, 16, 8, 256000, 256) | SLIDING),
    "gemma3_text": ("Gemma 3 12B", sizes(3840, 15360, 16, 8, 262208, 256) | SLIDING),
    "gemma4_text": (
        "Gemma 4 31B",
        sizes(5376, 21504, 32, 16, 262144, 256)
        | SLIDING
        | GEMMA4
        | {"attention_k_eq_v": True}
        | {"per_layer_config": {"1": {"head_dim": 512, "num_key_value_heads": 4}}},
    ),
    "gemma4_text, experts": (
        "Gemma 4 26B-A4B",
        sizes(2816, 2112, 16, 8, 262144, 256)
        | SLIDING
        | GEMMA4
        | {"attention_k_eq_v": True}
        | {"per_layer_config": {"1": {"head_dim": 512, "num_key_value_heads": 2}}}
        | {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8}
        | {"moe_intermediate_size": 704},
    ),
    "gemma4_text, inputs by layer": (
        "Gemma 4 E2B",
        sizes(1536, 6144, 8, 1, 262144, 256)
        | GEMMA4
        | {"num_hidden_layers": 4, "layer_types": 2 * SLIDING["layer_types"]}
        | {"per_layer_config": {"1": {"head_dim": 512}, "3": {"head_dim": 512}}}
        | {"hidden_size_per_layer_input": 256, "sliding_window": 512}
        | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    ),
    "gemma4_unified_text": (
        "Gemma 4 12B",
        sizes(3840, 15360, 16, 8, 262144, 256)
        | SLIDING
        | {"attention_k_eq_v": True, "final_logit_softcapping": 30.0}
        | {"per_layer_config": {"1": {"head_dim": 512, "num_key_value_heads": 1}}},
    ),
    "glm4": ("GLM-4-9B-0414", sizes(4096, 13696, 32, 2, 151552, 128)),
    "glm4_moe": (
        "GLM-4.5-Air",
        sizes(4096, 10944, 96, 8, 151552, 128) | experts(128, 8, 1408, "n_routed_experts"),
    ),
    "glm4_moe_lite": ("GLM-4.7-Flash", {}),
    "gpt_oss": ("gpt-oss-20b", {"num_local_experts": 32} | SLIDING),
    "granite": (
        "Granite 3.3 8B",
        sizes(4096, 12800, 32, 8, 49159)
        | {"attention_multiplier": 0.0078125, "residual_multiplier": 0.22}
        | {"embedding_multiplier": 12.0, "logits_scaling": 16.0},
    ),
    "granitemoe": (
        "Granite 3.1 3B-A800M",
        sizes(1536, 512, 24, 8, 49155)
        | {"num_local_experts": 40, "num_experts_per_tok": 8, "attention_multiplier": 0.015625}
        | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 6.0},
    ),
    "granitemoehybrid": (
        "Granite 4.0 H Small",
        sizes(4096, 768, 32, 8, 100352)
        | LINEAR
        | {"num_local_experts": 72, "num_experts_per_tok": 10, "attention_multiplier": 0.0078125}
        | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 16.0}
        | {"mamba_d_state": 128, "shared_intermediate_size": 1536},
    ),
    "hunyuan_v1_dense": ("Hunyuan-7B", sizes(4096, 14336, 32, 8, 128167, 128)),
    "kimi_linear": (
        "Kimi-Linear-48B-A3B",
        LINEAR | {"mlp_layer_types": ["dense", "sparse"]},
    ),
    "kimi_linear, K3": ("Kimi K3", KIMI_K3),
    "lfm2": (
        "LFM2-1.2B",
        sizes(2048, 12288, 32, 8, 65536) | {"layer_types": ["conv", "full_attention"]},
    ),
    "lfm2_moe": (
        "LFM2-8B-A1B",
        {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    ),
    "llama": ("Llama 3.3 70B", sizes(8192, 28672, 64, 8, 128256)),
    "llama4_text": ("Llama 4 Scout", {"no_rope_layers": [1, 0], "moe_layers": [0, 1]}),
    "minimax_m2": ("MiniMax-M2", {}),
    "ministral3": ("Ministral 3 8B", {}),
    "mistral": ("Mistral 7B", sizes(4096, 14336, 32, 8, 32768)),
    "mistral4": ("Mistral Small 4", {}),
    "mixtral": ("Mixtral 8x7B", sizes(4096, 14336, 32, 8, 32000)),
    "olmo2": ("OLMo 2 7B", sizes(4096, 11008, 32, 32, 100352)),
    "olmo3": ("OLMo 3 7B", sizes(4096, 11008, 32, 32, 100278) | SLIDING),
    "olmoe": ("OLMoE-1B-7B", sizes(2048, 1024, 16, 16, 50304)),
    "phi3": ("Phi-4", sizes(5120, 17920, 40, 10, 100352)),
    "qwen2": ("Qwen2.5 7B", sizes(3584, 18944, 28, 4, 152064)),
    "qwen2_moe": (
        "Qwen2-57B-A14B",
        sizes(3584, 18944, 28, 4, 151936)
        | experts(64, 8, 2560)
        | {"shared_expert_intermediate_size": 20480},
    ),
    "qwen3": ("Qwen3 8B", sizes(4096, 12288, 32, 8, 151936, 128)),
    "qwen3_moe": ("Qwen3-30B-A3B", sizes(2048, 6144, 32, 4, 151936, 128) | experts(128, 8, 768)),
    "qwen3_5_text": (
        "Qwen3.6-27B",
        sizes(5120, 17408, 24, 4, 248320, 256) | LINEAR | {"linear_num_value_heads": 48},
    ),
    "qwen3_5_moe_text": ("Qwen3.6-35B-A3B", LINEAR),
    "qwen3_next": ("Qwen3-Next-80B-A3B", LINEAR),
    "seed_oss": ("Seed-OSS-36B", sizes(5120, 27648, 80, 8, 155136, 128)),
    "smollm3": ("SmolLM3-3B", sizes(2048, 11008, 16, 4, 128256) | {"no_rope_layers": [1, 0]}),
    "solar_open": ("Solar Open 100B", {}),
    "starcoder2": (
        "StarCoder2-7B",
        sizes(4608, 18432, 36, 4, 49152) | {"bos_token_id": 0, "eos_token_id": 0},
    ),
}

#: Config fields of the models of --decode: three layers with states and one of full attention.
FOUR_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": 3 * LINEAR["layer_types"][:1] + LINEAR["layer_types"][1:],
    "vocab_size": 16384,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
DECODED = {
    "granitemoehybrid": FOUR_LAYERS | {"num_local_experts": 16},
    "kimi_linear": FOUR_LAYERS | {"num_experts": 16, "mlp_layer_types": ["dense", *3 * ["sparse"]]},
    "lfm2": FOUR_LAYERS | {"layer_types": [*3 * ["conv"], "full_attention"]},
    "qwen3_next": FOUR_LAYERS | {"num_experts": 16},
}
#: Parts of the names of operations of attention, and of what layers with states have instead.
_ATTENTION = ("linear_attn", "self_attn", ".conv.", ".mamba.")

#: Config fields with an entry for each layer of a class's default model: not used here.
_BY_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "moe_layers", "attn_type_list")


def _model_type(row: str) -> str:
    return row.partition(",")[0]


def config(row: str, name: str, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a config.json of two layers, or as many as the row or `more` (more fields) says."""
    own: dict[str, Any] = {}
    if "model_type" not in MODELS[row][1]:
        known = transformers.AutoConfig.for_model(_model_type(row)).to_dict()
        own = {key: value for key, value in known.items() if key not in _BY_LAYER}
    own |= {"architectures": [name], "num_hidden_layers": 2} | MODELS[row][1] | (more or {})
    longest = "max_position_embeddings" if "max_position_embeddings" in own else "model_max_length"
    own[longest] = max(own[longest], LENGTH)
    found: dict[str, Any] = json.loads(json.dumps(own, default=str))
    return found


def decode(row: str, name: str, *, plain: bool, threads: int, seconds: float) -> str:
    """Return a row of the table of --decode. Raises SystemExit if a command of mxc fails."""
    sys.path.append(str(Path(__file__).parent / "cpu"))
    from artifacts import run_mxc
    from limits import READ, Machine
    from repetitions import interleave

    with tempfile.TemporaryDirectory() as folder:
        checkpoint, output = Path(folder) / "checkpoint", Path(folder) / "model.mxc"
        write_decoder(checkpoint, config(row, name, DECODED[row]))
        words = [] if plain else ["--quantize-dense", "mxfp8"]
        run_mxc(["compile", str(checkpoint), "--output", str(output), "--no-cache",
                 "--max-sequence-length", str(LENGTH), "--strict", *words])  # fmt: skip
        report = json.loads((output / REPORT).read_text())
        size = sum(each["samples"]["token"]["bytes_moved"] for each in report["operations"])
        bench = ["bench", str(output), "--prompt", str(_PROMPT), "--generate", "1",
                 "--threads", str(threads), "--json", "--profile"]  # fmt: skip
        profiles = [json.loads(run_mxc(bench))["profiles"][-1] for _ in range(_PROFILES)]
        machine, model = Machine(threads), load(output, threads=threads)
        sequence, batch = model.sequence(), model.batch()
        sequence.feed([1] * _PROMPT)

        def generate() -> None:
            for _ in range(_TOKENS):
                batch.feed([sequence], [1])

        others = OtherLoad()
        calls = {"tokens": generate, READ: machine.calls[READ]}
        times = interleave(calls, seconds=seconds, settle=0)
    token, read = times["tokens"].each_of(_TOKENS), times[READ]
    cells = [f"{size / 1e6:.0f} MB"]
    shares = []
    for own, limit in ((token.least, read.least), (token.median, read.median)):
        rate, most = size / own / 1e9, machine.rate(READ, limit)
        cells += [f"{1e3 * own:.2f}", f"{rate:.1f}", f"{most:.1f}"]
        shares.append(rate / most)
    each = [_attention(profile["operations"]) for profile in profiles]
    moved, spent = min(each, key=lambda pair: pair[1])
    rate = moved / spent / 1e9
    cells += [", ".join(f"{share:.2f}" for share in shares)]
    cells += [f"{moved / 1e6:.1f} MB", f"{1e3 * spent:.3f}", f"{rate:.1f}"]
    cells += [f"{rate / machine.rate(READ, read.least):.2f}", f"{others.cores():.1f}"]
    return f"| {row} | {' | '.join(cells)} |"


def _attention(operations: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the bytes moved and the seconds taken by the operations of attention in a profile."""
    own = [each for each in operations if any(part in each["name"] for part in _ATTENTION)]
    seconds = [each["milliseconds"] / 1e3 for each in own]
    rates = [(each["gigabytes_per_second"] or 0.0) * 1e9 for each in own]
    moved = [rate * spent for rate, spent in zip(rates, seconds, strict=True)]
    return sum(moved), sum(seconds)


def measure(
    checkpoint: Path, target: str, output: Path, *, plain: bool
) -> tuple[float, float, str]:
    """Compile; return processor seconds, wall seconds, and the error or the products left to IREE
    ("" if there is neither)."""
    command = [sys.executable, "-m", "mxc", "compile", str(checkpoint), "--no-cache"]
    command += ["--target", target, "--output", str(output), "--weights", "none", "--strict"]
    command += [] if plain else ["--quantize-dense", "mxfp8"]
    command += ["--max-sequence-length", str(LENGTH)]
    before, start = os.times(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, after = time.monotonic() - start, os.times()
    used = after.children_user - before.children_user
    used += after.children_system - before.children_system
    if done.returncode:
        said = done.stderr.strip() or f"exit {done.returncode}"
        return used, wall, " ".join(said[said.find("error:") :].split())
    return used, wall, _left(json.loads((output / REPORT).read_text())["matmuls"])


def _left(matmuls: list[dict[str, Any]]) -> str:
    """Return the products that no kernel of mxc computes, each with the reason."""
    left = [row for row in matmuls if row["reason"] is not None]
    return ", ".join(f"{row['name']} is IREE's: {row['reason']}" for row in left)


def main() -> None:
    """Print a row for each architecture."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--only", nargs="*")
    arguments.add_argument("--target", action="append", default=[])
    arguments.add_argument("--plain", action="store_true")
    arguments.add_argument("--decode", action="store_true")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--seconds", type=float, default=15)
    given = arguments.parse_args()
    names = {each.model_type: each.name for each in ARCHITECTURES}
    if given.decode:
        columns = ["architecture", "a token", *2 * ["ms", "GB/s", "DRAM"], "shares"]
        columns += ["attention", "ms", "GB/s", "share", "others"]
        print(f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", sep="\n", flush=True)
        options = {"plain": given.plain, "threads": given.threads, "seconds": given.seconds}
        for row in given.only or DECODED:
            print(decode(row, names[_model_type(row)], **options), flush=True)
        return
    targets = given.target or ["cpu", "gfx950"]
    print("| architecture | sizes of |", *(f"{t}: processor, wall |" for t in targets), flush=True)
    print("|---|---|" + "---|" * len(targets), flush=True)
    every = True
    for row in given.only or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "checkpoint"
            write_decoder(checkpoint, config(row, names[_model_type(row)]), headers_only=True)
            cells = []
            for target in targets:
                output = Path(folder) / f"{target}.mxc"
                used, wall, failed = measure(checkpoint, target, output, plain=given.plain)
                every = every and not failed
                cells.append(f"{used:.1f} s, {wall:.0f} s{f': {failed}' if failed else ''}")
            model = MODELS[row][0]
            print(f"| {row} | {model} | {' | '.join(cells)} |", flush=True)
    sys.exit(not every)


if __name__ == "__main__":
    main()
