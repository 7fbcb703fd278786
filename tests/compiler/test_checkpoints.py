"""The readers, against the safetensors package and transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoTokenizer, GptOssForCausalLM, Mxfp4Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_oss import GptOssConfig as TheirConfig

from mxc.compiler.checkpoints.files.safetensors import read_checkpoint, read_file
from mxc.compiler.checkpoints.files.tensors import DTYPES, read_bytes
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.checkpoints.synthetic.tokenizer import SPECIAL_TOKENS
from mxc.compiler.models.configs.gpt_oss import GptOssConfig, parse
from mxc.compiler.models.model import open_model

SHAPES = {
    "plain": GptOssOptions(),
    "odd": GptOssOptions(
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=16,
        num_local_experts=5,
        num_experts_per_tok=3,
        vocab_size=331,
        sliding_window=4,
        layer_types=("full_attention", "sliding_attention", "full_attention"),
        rope_key="rope_parameters",
        tie_word_embeddings=True,
        dense_dtype="F32",
    ),
    "no_bias_f16": GptOssOptions(attention_bias=False, dense_dtype="F16", num_hidden_layers=1),
}


def parsed(folder: Path) -> GptOssConfig:
    return parse(json.loads((folder / "config.json").read_text()), "config.json")


@pytest.fixture(scope="module", params=SHAPES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    shards = 1 if request.param == "no_bias_f16" else 3
    write_gpt_oss(folder, SHAPES[request.param], shards=shards)
    return folder


def test_headers_and_bytes_are_those_of_the_safetensors_package(written: Path) -> None:
    checkpoint = read_checkpoint(written)
    theirs = {}
    for file in written.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            theirs.update({name: (file, opened.get_tensor(name)) for name in list(opened.keys())})
    assert set(checkpoint.tensors) == set(theirs)
    for name, (file, tensor) in theirs.items():
        record = checkpoint.tensors[name]
        assert (record.file, record.shape) == (file, tuple(tensor.shape))
        ours = read_bytes(record, 0, record.bytes)
        assert ours.tobytes() == tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_every_dtype_that_torch_writes_is_read(tmp_path: Path) -> None:
    dtypes = {
        "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
        "U16": torch.uint16, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32,
        "U32": torch.uint32, "F32": torch.float32, "I64": torch.int64, "U64": torch.uint64,
        "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
        "F8_E8M0": torch.float8_e8m0fnu,
    }  # fmt: skip
    assert set(dtypes) == set(DTYPES)
    file = tmp_path / "all.safetensors"
    save_file({name: torch.zeros(3, 2).to(dtype) for name, dtype in dtypes.items()}, file)
    assert {r.name: r.dtype for r in read_file(file)[0].values()} == {n: n for n in dtypes}


def test_config_is_what_transformers_reads(written: Path) -> None:
    ours = parsed(written)
    theirs = TheirConfig.from_pretrained(written)
    same = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "num_local_experts", "num_experts_per_tok",
        "vocab_size", "sliding_window", "rms_norm_eps", "swiglu_limit", "swiglu_alpha",
        "attention_bias", "tie_word_embeddings", "max_position_embeddings", "bos_token_id",
        "pad_token_id",
    )  # fmt: skip
    assert {k: getattr(ours, k) for k in same} == {k: getattr(theirs, k) for k in same}
    assert list(ours.layer_types) == theirs.layer_types
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    rope = theirs.rope_parameters
    assert ours.rope_theta == rope["rope_theta"]
    for key in ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings", "truncate"):
        assert getattr(ours.rope_scaling, key) == rope[key]
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    assert ours.rope_scaling.attention_factor == pytest.approx(factor, rel=1e-15)


@pytest.mark.parametrize(
    "scaling",
    [{"attention_factor": 1.25}, {"mscale": 0.7, "mscale_all_dim": 1.3}, {"factor": 0.5}, {}],
)
def test_attention_factor_is_resolved_as_transformers_does(
    tmp_path: Path, scaling: dict[str, Any]
) -> None:
    write_gpt_oss(tmp_path, tokenizer=False)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["rope_scaling"].update(scaling)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](TheirConfig.from_pretrained(tmp_path), "cpu")
    assert parse(raw, "config.json").rope_scaling.attention_factor == pytest.approx(factor)


def test_transformers_loads_what_we_write(written: Path) -> None:
    model, report = GptOssForCausalLM.from_pretrained(
        written,
        quantization_config=Mxfp4Config(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    with torch.no_grad():
        logits = model(torch.arange(24)[None] * 7 % model.config.vocab_size).logits
    assert torch.isfinite(logits).all()
    # Sane: neither flat (a comparison would show nothing) nor saturated.
    assert 0.3 < logits.square().mean().sqrt() < 10


def test_transformers_saves_a_config_that_we_read(written: Path, tmp_path: Path) -> None:
    theirs = TheirConfig.from_pretrained(written)
    theirs.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in raw
    assert parse(raw, "theirs") == parsed(written)


def test_tokenizer_speaks_harmony(written: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(written)
    model = open_model(written)
    assert len(tokenizer) <= model.decoder.vocab_size
    text = "Héllo, wörld! 你好 \n\t 1234"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    assert model.eos_tokens == tuple(ids[t] for t in ("<|endoftext|>", "<|return|>", "<|call|>"))
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert chat == (
        "<|start|>user<|message|>Hi<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes<|end|><|start|>assistant"
    )
    assert tokenizer.encode(chat).count(ids["<|start|>"]) == 3


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_gpt_oss(tmp_path / name, seed=seed)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    content = {n: [(tmp_path / n / f).read_bytes() for f in files] for n in "abc"}
    assert content["a"] == content["b"]
    assert content["a"] != content["c"]


def test_eos_tokens_without_generation_config(tmp_path: Path) -> None:
    write_gpt_oss(tmp_path, tokenizer=False)
    (tmp_path / "generation_config.json").unlink()
    assert open_model(tmp_path).eos_tokens == (1,)
