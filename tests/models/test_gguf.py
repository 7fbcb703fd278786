"""GGUF files from the gguf package: metadata, names, blocks and tokenizer become a model.

The reference is transformers' model with the numbers that gguf dequantizes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.numpy import load_file as load_numpy
from tokenizers import Tokenizer

import mxc
from mxc.artifact.manifest import CHAT_TEMPLATE, MANIFEST, REPORT, TOKENIZER
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.checkpoints.synthetic.tokenizer import write_tokenizer
from mxc.compiler.models.model import BoundModel, open_model
from mxc.compiler.packing.items import PackingFindings, archive_bytes
from mxc.compiler.tokenizers.from_gguf import text_files
from mxc.errors import CheckpointError

#: Share of the root mean square of all logits, as in test_logits.py.
TOLERANCE = 2e-5

F32, F16, BF16 = (getattr(gguf.GGMLQuantizationType, n) for n in ("F32", "F16", "BF16"))
Q8_0, MXFP4 = (getattr(gguf.GGMLQuantizationType, n) for n in ("Q8_0", "MXFP4"))

#: transformers' names -> GGUF's, and the types.
TENSORS = {
    "model.embed_tokens.weight": ("token_embd.weight", Q8_0),
    "model.norm.weight": ("output_norm.weight", F32),
    "lm_head.weight": ("output.weight", BF16),
    "input_layernorm.weight": ("attn_norm.weight", F32),
    "self_attn.q_proj.weight": ("attn_q.weight", MXFP4),
    "self_attn.k_proj.weight": ("attn_k.weight", Q8_0),
    "self_attn.v_proj.weight": ("attn_v.weight", F16),
    "self_attn.o_proj.weight": ("attn_output.weight", MXFP4),
    "post_attention_layernorm.weight": ("ffn_norm.weight", F32),
    "block_sparse_moe.gate.weight": ("ffn_gate_inp.weight", F32),
    "block_sparse_moe.experts.w1.weight": ("ffn_gate_exps.weight", MXFP4),
    "block_sparse_moe.experts.w3.weight": ("ffn_up_exps.weight", MXFP4),
    "block_sparse_moe.experts.w2.weight": ("ffn_down_exps.weight", MXFP4),
}

HEADS, SHARED, EXPERTS, CONTEXT = 2, 1, 4, 64

#: Frequencies are divided by these, as in a GGUF of Llama 3.
DIVISORS = np.array([*[1.0] * 4, 1.5, 1.5, 3.0, 3.0, *[8.0] * 8], np.float32)


def pairs(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of queries or keys as llama.cpp wants them: the two halves of a rotation in turn."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def halves(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """The inverse."""
    found = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(found.swapaxes(1, 2)).reshape(rows.shape)


def words(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Tokens and merges of a small byte-level tokenizer."""
    write_tokenizer(folder, 300)
    model = json.loads((folder / TOKENIZER).read_text())["model"]
    tokens = dict(model["vocab"])
    for token in json.loads((folder / TOKENIZER).read_text())["added_tokens"]:
        tokens[token["content"]] = token["id"]
    return tokens, [" ".join(merge) for merge in model["merges"]]


@pytest.fixture(scope="module")
def mixtral(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, transformers.MixtralForCausalLM]:
    """A Mixtral in a GGUF, in which it calls itself llama, and transformers' model of it."""
    folder = tmp_path_factory.mktemp("gguf")
    return folder, write(folder, tied=False)


def write(folder: Path, *, tied: bool) -> transformers.MixtralForCausalLM:
    """model.gguf and model.mxc; `tied`: the head is the embedding."""
    tokens, merges = words(folder)
    config = transformers.MixtralConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        vocab_size=len(tokens),
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        attn_implementation="eager",
        tie_word_embeddings=tied,
    )
    model = transformers.MixtralForCausalLM(config).float()
    random = torch.Generator().manual_seed(2)
    for name, weight in model.named_parameters():
        draw = torch.randn(weight.shape, generator=random)
        scale = 1.0 if "embed" in name else 1.5 * weight.shape[-1] ** -0.5
        weight.data = 1 + 0.1 * draw if weight.dim() == 1 else scale * draw
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(SHARED)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(32)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    ordered = sorted(tokens, key=lambda word: tokens[word])
    control = [3 if word.startswith("<|") else 1 for word in ordered]
    writer.add_token_list(ordered)
    writer.add_token_types(control)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens["<|return|>"])
    writer.add_bos_token_id(tokens["<|startoftext|>"])
    writer.add_chat_template("{{ messages[0].content }}")
    writer.add_tensor("rope_freqs.weight", DIVISORS)
    state = model.state_dict()
    experts = "model.layers.0.mlp.experts."
    gate, up = state[f"{experts}gate_up_proj"].chunk(2, dim=1)
    stacks = {"w1": gate, "w3": up, "w2": state[f"{experts}down_proj"]}
    found = {}
    for name, (theirs, kind) in TENSORS.items():
        if tied and name == "lm_head.weight":
            continue
        where = name if name in state else f"model.layers.0.{name}"
        last = name.split(".")[-2]
        values = stacks.get(last, state.get(where.replace("block_sparse_moe", "mlp"))).numpy()
        heads = {"q_proj": HEADS, "k_proj": SHARED}.get(last)
        rows = values if heads is None else pairs(values, heads)
        data = gguf.quants.quantize(np.ascontiguousarray(rows), kind)
        prefix = "" if name in state else "blk.0."
        writer.add_tensor(prefix + theirs, data, raw_dtype=kind)
        known = gguf.quants.dequantize(data, kind).reshape(rows.shape).astype(np.float32)
        known = known if heads is None else halves(known, heads)
        if last in stacks:
            stacks[last] = torch.from_numpy(known)
        else:
            found[where.replace("block_sparse_moe", "mlp")] = torch.from_numpy(known)
    found[f"{experts}gate_up_proj"] = torch.cat([stacks["w1"], stacks["w3"]], dim=1)
    found[f"{experts}down_proj"] = stacks["w2"]
    found.setdefault("lm_head.weight", found["model.embed_tokens.weight"])
    model.load_state_dict(found)
    model.model.rotary_emb.inv_freq /= torch.from_numpy(DIVISORS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    mxc.compile(
        folder / "model.gguf",
        "cpu",
        folder / "model.mxc",
        activations="f32",
        max_sequence_length=21,
    )
    return model


def test_logits(mixtral: tuple[Path, transformers.MixtralForCausalLM]) -> None:
    check_logits(*mixtral)


def test_an_embedding_in_q8_0_is_a_table_and_a_head(tmp_path: Path) -> None:
    check_logits(tmp_path, write(tmp_path, tied=True))
    manifest = json.loads((tmp_path / "model.mxc" / MANIFEST).read_text())
    table = manifest["weights"]["model.embed_tokens.weight"]
    assert (table["format"], table["layout"]) == ("int8", "panel16x4")
    assert table["source"] == "token_embd.weight"
    assert "lm_head.weight" not in manifest["weights"]
    # On gfx950 both read it as the checkpoint has it.
    artifact = mxc.compile(
        tmp_path / "model.gguf",
        "gfx950",
        tmp_path / "gfx950.mxc",
        activations="f32",
        max_sequence_length=21,
    )
    table = artifact.manifest.weights["model.embed_tokens.weight"]
    assert (table.format, table.layout) == ("int8", "identity")
    assert "lm_head.weight" not in artifact.manifest.weights
    (head,) = [
        row
        for row in json.loads((artifact.path / REPORT).read_text())["matmuls"]
        if row["name"] == "lm_head"
    ]
    assert head["kernel"].startswith("mxc_")
    assert head["fallback"] is None
    on_cpu, on_gpu = (
        mxc.load(tmp_path / name, device=device).sequence().feed([7, 3])
        for name, device in (("model.mxc", None), ("gfx950.mxc", "simulator"))
    )
    assert np.abs(on_gpu - on_cpu).max() / np.sqrt(np.mean(on_cpu**2)) <= TOLERANCE


def check_logits(folder: Path, reference: transformers.MixtralForCausalLM) -> None:
    tokens = np.random.default_rng(0).integers(0, reference.config.vocab_size, 21).tolist()
    with torch.no_grad():
        wanted = reference(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy()
    sequence = mxc.load(folder / "model.mxc").sequence()
    found = np.concatenate([sequence.feed(tokens[:18]), *(sequence.feed([t]) for t in tokens[18:])])
    assert np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2)) <= TOLERANCE


def test_what_the_manifest_says(mixtral: tuple[Path, transformers.MixtralForCausalLM]) -> None:
    folder, reference = mixtral
    manifest = json.loads((folder / "model.mxc" / MANIFEST).read_text())
    assert manifest["model"]["architecture"] == "mixtral"
    assert manifest["model"]["eos_tokens"] == [reference.config.vocab_size - 7]
    assert "model.gguf" in manifest["source"]
    weights = manifest["weights"]
    experts = weights["model.layers.0.block_sparse_moe.experts.gate_up_proj"]
    assert (experts["format"], experts["shape"]) == ("mxfp4", [EXPERTS, 192, 64])
    keys = weights["model.layers.0.self_attn.k_proj.weight"]
    assert (keys["format"], keys["block"], keys["layout"]) == ("int8", 32, "panel16x4")
    table = weights["model.embed_tokens.weight"]
    assert (table["format"], table["block"], table["layout"]) == ("int8", 32, "identity")
    assert not any("q8_0" in note for note in manifest["notes"])


def test_text_is_what_it_was(mixtral: tuple[Path, transformers.MixtralForCausalLM]) -> None:
    """Against the tokenizer that the vocabulary is from, which splits text the same way here."""
    folder, _ = mixtral
    ours = Tokenizer.from_file(str(folder / "model.mxc" / TOKENIZER))
    theirs = Tokenizer.from_file(str(folder / TOKENIZER))
    for text in (
        "Once upon a time",
        "the scale is 12.5",
        "<|start|>user<|message|>Hi<|end|>",
        "Zoë",
    ):
        assert ours.encode(text).ids == theirs.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)
    template = folder / "model.mxc" / CHAT_TEMPLATE
    assert template.read_text() == "{{ messages[0].content }}"


def packed_bytes(model: BoundModel) -> dict[str, bytes]:
    """What the archive has under each key, in the order of rows."""
    return {
        item.key: archive_bytes(item, item.reader(), 0, item.units[0], PackingFindings()).tobytes()
        for item in model.pack_items({})
    }


def test_gpt_oss_is_the_model_of_its_other_dialect(tmp_path: Path) -> None:
    """The same program, and under each key the same bytes."""
    folder, options = tmp_path / "folder", GptOssOptions(num_hidden_layers=1, dense_dtype="F32")
    config = write_gpt_oss(folder, options, shards=1, tokenizer=False)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gpt-oss")
    writer.add_block_count(1)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_sliding_window(config.sliding_window)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(config.rope_scaling.factor)
    writer.add_rope_scaling_orig_ctx_len(config.rope_scaling.original_max_position_embeddings)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "post_attention_norm",
        "mlp.router": "ffn_gate_inp",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    tensors = load_numpy(folder / "model.safetensors")
    for name, values in tensors.items():
        stem, _, kind = name.removeprefix("model.layers.0.").rpartition(".")
        prefix = "blk.0." if name.startswith("model.layers.") else ""
        if name.endswith(".sinks"):
            writer.add_tensor("blk.0.attn_sinks.weight", values)
        elif stem in names:
            writer.add_tensor(f"{prefix}{names[stem]}.{kind}", values)
        elif name.endswith("_bias"):
            part = "ffn_{}_exps.bias"
            rows = (
                {"down": values}
                if "down" in name
                else {"gate": values[:, ::2], "up": values[:, 1::2]}
            )
            for which, each in rows.items():
                writer.add_tensor(prefix + part.format(which), np.ascontiguousarray(each))
        elif name.endswith("_blocks"):
            codes = np.stack([values & 15, values >> 4], -1).reshape(*values.shape[:-1], 32)
            halves = codes[..., :16] | codes[..., 16:] << 4
            scales = tensors[name.removesuffix("_blocks") + "_scales"]
            blocks = np.concatenate([scales[..., None], halves], -1)
            blocks = blocks.reshape(*values.shape[:2], -1)
            rows = (
                {"down": blocks}
                if "down" in name
                else {"gate": blocks[:, ::2], "up": blocks[:, 1::2]}
            )
            for which, each in rows.items():
                data = np.ascontiguousarray(each)
                writer.add_tensor(f"{prefix}ffn_{which}_exps.weight", data, raw_dtype=MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    models = [open_model(place, activations="f32") for place in (folder, tmp_path / "m.gguf")]
    assert models[0].program() == models[1].program()
    first, second = (packed_bytes(model) for model in models)
    assert first.keys() == second.keys()
    assert [key for key in first if first[key] != second[key]] == []


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("llama-bpe", "I'm 12345", ["I", "'m", " ", "123", "45"]),
        ("qwen2", "I'm 12345", ["I", "'m", " ", "1", "2", "3", "4", "5"]),
        ("gpt-4o", "I'm HelloWorld 12345", ["I'm", " Hello", "World", " ", "123", "45"]),
        ("default", "I'm 12345", ["I", "'m", " 12345"]),
    ],
)
def test_text_is_split_as_the_models_do(pre: str, text: str, pieces: list[str]) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.merges": [],
    }
    made = Tokenizer.from_str(text_files(metadata, "m.gguf")[TOKENIZER].decode())
    found = [piece.replace("Ġ", " ") for piece, _ in made.pre_tokenizer.pre_tokenize_str(text)]
    assert found == pieces


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m | {"tokenizer.ggml.pre": "other"},
        lambda m: m | {"tokenizer.ggml.token_type": [1, 1]},
        lambda m: m | {"tokenizer.ggml.tokens": ["a", "a"]},
        lambda m: m | {"tokenizer.ggml.merges": ["ab"]},
    ],
)
def test_tokenizers_that_are_refused(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]}
    with pytest.raises(CheckpointError, match=r"m\.gguf: tokenizer\.ggml"):
        text_files(change(metadata), "m.gguf")
    assert text_files(metadata | {"tokenizer.ggml.model": "t5"}, "m.gguf") == {}
