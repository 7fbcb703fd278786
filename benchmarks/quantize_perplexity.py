"""Measure what quantizing costs a trained model: perplexity, and KL divergence of its predictions.

    python benchmarks/quantize_perplexity.py [--steps 600] [--folder FOLDER]

A small Llama (4 layers of 256, byte-level BPE of 512 tokens) is trained on the modules of Python's
standard library with torch, for a few minutes, from one seed. `mxc quantize` then writes it by each
recipe, calibrated by text that it was trained on, and `mxc eval` compares it with the trained model
in float32 on modules that it has not seen. Hidden states of some channels are made larger, and the
weights that read them smaller by as much, which changes no output: large models have such channels.

--folder keeps the models, and a later run uses them.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

#: Formats with options of `mxc quantize`; the text to calibrate with is added after --calibrate.
RECIPES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("mxfp8e4m3", ()),
    ("mxfp6e2m3", ()),
    ("mxfp4", ("--recipe", "floor")),
    ("mxfp4", ()),
    ("mxfp4", ("--recipe", "search")),
    ("mxfp4", ("--rotate",)),
    ("mxfp4", ("--calibrate",)),
    ("mxfp4", ("--recipe", "gptq", "--calibrate")),
    ("mxfp4", ("--recipe", "gptq", "--rotate", "--calibrate")),
    ("nvfp4", ()),
    ("nvfp4", ("--calibrate",)),
    ("nvfp4", ("--recipe", "gptq", "--calibrate")),
    ("nvfp4", ("--recipe", "gptq", "--rotate", "--calibrate")),
)
VOCABULARY, WINDOW, BATCH = 512, 256, 8
#: Number of channels of hidden states that are made larger after each norm, and the factor.
OUTLIERS, LARGER = 6, 16.0


def texts() -> tuple[str, str]:
    """Return the text of modules of the standard library to train on, and of others (one of ten) to
    measure on."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        [*library.glob("*.py"), *library.glob("asyncio/*.py"), *library.glob("email/*.py")]
    )
    parts: tuple[list[str], list[str]] = ([], [])
    for number, file in enumerate(files):
        parts[number % 10 == 9].append(file.read_text(errors="ignore"))
    return "\n".join(parts[0]), "\n".join(parts[1])


def tokenizer(text: str) -> Tokenizer:
    """Train a byte-level BPE of VOCABULARY tokens on the first million characters of a text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text[:1_000_000]], trainer)
    return made


def trained(text: str, encoder: Tokenizer, steps: int) -> LlamaForCausalLM:
    """Train a Llama on a text for a number of steps of AdamW, and return it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=WINDOW,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    tokens = torch.tensor(encoder.encode(text).ids)
    rate = 2e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.1)
    for step in range(steps):
        starts = torch.randint(0, len(tokens) - WINDOW, (BATCH,))
        rows = torch.stack([tokens[start : start + WINDOW] for start in starts])
        loss = model(rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {float(loss):.3f}", file=sys.stderr)
    return model


def with_outliers(model: LlamaForCausalLM) -> None:
    """Make OUTLIERS channels after each norm LARGER, and the weights that read them smaller by as
    much, so that the model's outputs stay the same."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            chosen = torch.randperm(norm.weight.numel())[:OUTLIERS]
            norm.weight.data[chosen] *= LARGER
            for reader in readers:
                reader.weight.data[:, chosen] /= LARGER


def prepared(folder: Path, steps: int) -> None:
    """Train the model. Write its checkpoint, and the texts to calibrate with and to measure on."""
    seen, unseen = texts()
    encoder = tokenizer(seen)
    model = trained(seen, encoder, steps)
    with_outliers(model)
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    encoder.save(str(folder / "model" / "tokenizer.json"))
    (folder / "calibrate.txt").write_text(seen[:200_000])
    (folder / "unseen.txt").write_text(unseen)


def run(*words: str | Path) -> Any:
    """Run a command of mxc and return what it prints with --json. Raises SystemExit."""
    command = [sys.executable, "-m", "mxc", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def measured(folder: Path, format: str, options: tuple[str, ...], count: int) -> dict[str, Any]:
    """Quantize and compile the model, unless `folder` has both, and evaluate it.

    Returns what `mxc eval` prints, and the `seconds` of quantizing. `count`: tokens to measure on.
    """
    words: list[str | Path] = [*options]
    if "--calibrate" in words:
        words.insert(words.index("--calibrate") + 1, folder / "calibrate.txt")
    made = folder / "-".join([format, *(each.strip("-") for each in options)])
    start = time.perf_counter()
    if not made.exists():
        run("quantize", folder / "model", "--output", made, "--format", format, *words)
    seconds = time.perf_counter() - start
    artifact = made.with_suffix(".mxc")
    if not artifact.exists():
        run("compile", made, "--output", artifact, "--activations", "f32")
    found = run(
        "eval", artifact, "--perplexity", folder / "unseen.txt", "--against", folder / "model",
        "--tokens", str(count), "--window", str(WINDOW),
    )  # fmt: skip
    return {**found, "seconds": seconds}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="of training")
    parser.add_argument("--tokens", type=int, default=16384, help="to measure on")
    parser.add_argument("--folder", type=Path, help="that keeps the models")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = words.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "unseen.txt").exists():
            prepared(folder, words.steps)
        for number, (format, options) in enumerate(RECIPES):
            found = measured(folder, format, options, words.tokens)
            if number == 0:
                before = found["against"]["perplexity"]
                print(
                    f"perplexity of the trained model {before:.3f}, {found['predicted']} tokens\n"
                )
                print("| format | options | perplexity | mean KL | same token | s |")
                print("|---|---|---|---|---|---|")
            of, difference = found["model"], found["difference"]
            print(
                f"| {format} | {' '.join(options)} | {of['perplexity']:.3f} "
                f"| {difference['mean_kl']:.4f} | {difference['agreement']:.1%} "
                f"| {found['seconds']:.1f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
