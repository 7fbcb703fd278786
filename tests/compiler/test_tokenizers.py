"""Tokenizers into GGUF and out of it, beside what transformers makes of the same metadata."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    convert_gguf_tokenizer,
    get_gguf_tokenizer,
)

from mxc.artifact.manifest import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.convert.gguf_header import header
from mxc.compiler.convert.plan import ConversionPlan
from mxc.compiler.tokenizers.from_gguf import text_files
from mxc.compiler.tokenizers.sentencepiece import SPACE
from mxc.compiler.tokenizers.splits import NORMALIZER_KEY, SPLITS
from mxc.compiler.tokenizers.to_gguf import metadata
from mxc.errors import CheckpointError

TEXTS = (
    "Once upon a time there was a compiler.",
    "the scale is 12.5,\n\n\tnot 13   or 14",
    "Zoë 日本 🙂 I'm HelloWorld",
    "<s>hi<|end|> there",
    "",
)

CORPUS = [text for text in TEXTS if text] * 4 + ["low lower lowest new newer newest"] * 9


def ids(tokenizer: Tokenizer, *, special: bool = True) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=special).ids for text in TEXTS]


def sentencepiece_metadata() -> dict[str, Any]:
    """A vocabulary as sentencepiece trains it, of pieces that follow from their scores."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    trained.pre_tokenizer = pre_tokenizers.Split("x", behavior="isolated")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=160, show_progress=False))
    merged = json.loads(trained.to_str())["model"]
    letters = sorted({letter for text in CORPUS for letter in text if letter.isascii()} | {SPACE})
    pieces = ["".join(merge) for merge in merged["merges"]]
    pieces = [piece for piece in dict.fromkeys(pieces) if set(piece) <= set(letters)]
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<|end|>"]
    kinds = [2, 3, 3, *[6] * 256, 4]
    words += [*pieces, *letters]
    kinds += [1] * (len(words) - len(kinds))
    scores = [0.0] * 260 + [-float(number) for number in range(len(words) - 260)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


def made(said: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(text_files(said, "m.gguf")[TOKENIZER].decode())


def theirs(said: dict[str, Any], tmp_path: Path) -> Tokenizer:
    """transformers' tokenizer of a file with this metadata."""
    head, _, _ = header(
        ConversionPlan(tensors=[], config={}, metadata={"general.architecture": "llama", **said})
    )
    (tmp_path / "m.gguf").write_bytes(head)
    architecture, tokenizer, _ = get_gguf_tokenizer(str(tmp_path / "m.gguf"))
    return convert_gguf_tokenizer(architecture, tokenizer)[0]


def test_sentencepiece_as_transformers_has_it(tmp_path: Path) -> None:
    said = sentencepiece_metadata()
    ours, reference = made(said), theirs(said, tmp_path)
    # Theirs has no space after control tokens, which llama.cpp has.
    plain = [text for text in TEXTS if "<" not in text]
    for text in plain:
        found = ours.encode(text, add_special_tokens=False)
        assert found.ids == reference.encode(text, add_special_tokens=False).ids
        assert ours.decode(found.ids) == text
    bos = ours.encode("hi").ids
    assert bos[0] == 1
    assert len(ours.encode("日").ids) == 1 + 1 + 3, "a letter without a piece is its bytes"
    # After a control token, and after one of the user, a text begins again.
    assert ours.encode("<|end|>new", add_special_tokens=False).tokens[:2] == ["<|end|>", "▁ne"]


def folder_of(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_sentencepiece_there_and_back(tmp_path: Path) -> None:
    said = sentencepiece_metadata() | {"tokenizer.chat_template": "{{ messages }}"}
    folder = folder_of(tmp_path / "in", text_files(said, "m.gguf"))
    found, notes = metadata(folder, {"vocab_size": len(said["tokenizer.ggml.tokens"]) + 2})
    assert notes == ()
    tokens = found.pop("tokenizer.ggml.tokens")
    words = said["tokenizer.ggml.tokens"]
    assert tokens == [*words, f"[PAD{len(words)}]", f"[PAD{len(words) + 1}]"]
    assert found["tokenizer.ggml.token_type"] == [*said["tokenizer.ggml.token_type"], 5, 5]
    for key in ("model", "bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token"):
        assert found[f"tokenizer.ggml.{key}"] == said[f"tokenizer.ggml.{key}"]
    assert found["tokenizer.chat_template"] == "{{ messages }}"
    again = made(found | {"tokenizer.ggml.tokens": tokens})
    assert ids(again) == ids(made(said))


@pytest.mark.parametrize("pre", [name for name in SPLITS if name not in ("default", "llama3")])
def test_byte_level_there_and_back(pre: str, tmp_path: Path) -> None:
    write_gpt_oss(tmp_path / "in", GptOssOptions(vocab_size=300, num_hidden_layers=1))
    files = {
        name: (tmp_path / "in" / name).read_bytes()
        for name in (TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE)
    }
    raw = json.loads(files[TOKENIZER])
    split = {"type": "Split", "pattern": {"Regex": SPLITS[pre]}, "behavior": "Isolated",
             "invert": False}  # fmt: skip
    if SPLITS[pre] is not None:
        bytes_ = raw["pre_tokenizer"] | {"use_regex": False}
        raw["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_]}
    files[TOKENIZER] = json.dumps(raw).encode()
    folder = folder_of(tmp_path / "split", files)
    found, notes = metadata(folder, {"vocab_size": 300})
    assert notes == ()
    assert found["tokenizer.ggml.pre"] == pre
    wanted = Tokenizer.from_file(str(folder / TOKENIZER))
    assert ids(made(found), special=False) == ids(wanted, special=False)
    assert ids(theirs(found, tmp_path), special=False) == ids(wanted, special=False)


#: A letter and an accent, a ligature: NFC composes the one and NFKC takes the other apart.
NOT_NORMAL = "Zoe\u0308 of\ufb01ce"


@pytest.mark.parametrize("forms", [(), ("NFC",), ("NFKC",), ("NFKD", "NFC")])
@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
def test_text_is_normalized_as_before(pre: str, forms: tuple[str, ...], tmp_path: Path) -> None:
    """GGUF has no key for it: ours is kept, and a note says that llama.cpp does not do it."""
    write_gpt_oss(tmp_path / "in", GptOssOptions(vocab_size=300, num_hidden_layers=1))
    raw = json.loads((tmp_path / "in" / TOKENIZER).read_text())
    split = {"type": "Split", "pattern": {"Regex": SPLITS[pre]}, "behavior": "Isolated",
             "invert": False}  # fmt: skip
    bytes_ = raw["pre_tokenizer"] | {"use_regex": False}
    raw["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_]}
    steps = [{"type": form} for form in forms]
    raw["normalizer"] = {"type": "Sequence", "normalizers": steps} if steps else None
    folder = folder_of(tmp_path / "made", {TOKENIZER: json.dumps(raw).encode()})
    found, notes = metadata(folder, {})
    assert [note for note in notes if "first; llama.cpp" in note] == (
        [f"the tokenizer brings text to {' '.join(forms)} first; llama.cpp takes it as it is"]
        if forms
        else []
    )
    wanted = Tokenizer.from_file(str(folder / TOKENIZER)).encode(NOT_NORMAL)
    assert made(found).encode(NOT_NORMAL).ids == wanted.ids
    # A file of others says nothing: Qwen2's own tokenizer composes, as transformers has it.
    del found[NORMALIZER_KEY]
    others = theirs(found, tmp_path).normalizer if pre != "qwen2" else normalizers.NFC()
    text = NOT_NORMAL if others is None else others.normalize_str(NOT_NORMAL)
    again = made(found)
    assert again.encode(NOT_NORMAL).ids == again.encode(text).ids
    assert (again.normalizer is None) == (pre != "qwen2")
    with pytest.raises(CheckpointError, match=r"mxc\.normalizer is 'NFX', wanted some of NFC"):
        made(found | {NORMALIZER_KEY: "NFX"})


def test_a_converted_checkpoint_has_its_tokenizer(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_gpt_oss(source, GptOssOptions(vocab_size=300, num_hidden_layers=1))
    found = convert(source, "gguf", tmp_path / "m.gguf")
    assert not any("tokenizer" in note for note in found.notes)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert len(reader.get_field("tokenizer.ggml.tokens").data) == 300
    assert reader.get_field("tokenizer.ggml.token_type").types[1] == gguf.GGUFValueType.INT32
    settings = json.loads((source / TOKENIZER_CONFIG).read_text())
    number = reader.get_field("tokenizer.ggml.eos_token_id").contents()
    wanted = Tokenizer.from_file(str(source / TOKENIZER))
    assert number == wanted.token_to_id(settings["eos_token"])
    template = reader.get_field("tokenizer.chat_template").contents()
    assert template == (source / CHAT_TEMPLATE).read_text()
    convert(tmp_path / "m.gguf", "gpt-oss", tmp_path / "back")
    again = Tokenizer.from_file(str(tmp_path / "back" / TOKENIZER))
    assert ids(again) == ids(wanted)
    assert (tmp_path / "back" / CHAT_TEMPLATE).read_text() == template


def changed(raw: dict[str, Any], **parts: Any) -> dict[str, bytes]:
    model = raw["model"] | parts.pop("model", {})
    return {TOKENIZER: json.dumps(raw | {"model": model} | parts).encode()}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"type": "WordPiece"}}, "its model is WordPiece, wanted BPE"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "a way that is not byte-level BPE's"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated"},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}},
            r"no name for its way to split text, 'a\+'",
        ),
        ({"normalizer": {"type": "Lowercase"}}, "changes text by Lowercase"),
        ({"model": {"byte_fallback": True}, "pre_tokenizer": None}, "changes text by nothing"),
        (
            {"model": {"byte_fallback": True, "merges": ["b c", "a b"],
                       "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}},
             "pre_tokenizer": None, "normalizer": {"type": "Replace"}, "added_tokens": []},
            None,
        ),
        (
            {"model": {"byte_fallback": True, "merges": ["a b", "ab c"],
                       "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}},
             "pre_tokenizer": None, "normalizer": {"type": "Replace"}, "added_tokens": []},
            "its merges are no order of its pieces",
        ),
    ],
)  # fmt: skip
def test_what_llama_cpp_cannot_do(
    changes: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    write_gpt_oss(tmp_path / "in", GptOssOptions(vocab_size=300, num_hidden_layers=1))
    raw = json.loads((tmp_path / "in" / TOKENIZER).read_text())
    found, notes = metadata(folder_of(tmp_path / "changed", changed(raw, **changes)), {})
    if reason is None:
        assert notes == ()
        return
    assert found == {}
    assert re.search(reason, notes[0])


def test_damaged(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", {TOKENIZER: b'{"model": {"type": "BPE", "vocab": 3}}'})
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is no tokenizer"):
        metadata(folder, {})
    ends = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9,
            "tokenizer.ggml.eom_token_id": 8}  # fmt: skip
    assert metadata(tmp_path, {"eos_token_id": [7, 9, 8, 5]}) == (
        ends,
        (
            "there is no tokenizer.json, and so no tokenizer in the file; llama.cpp wants one",
            "a text ends with 5 too; GGUF has no more keys",
        ),
    )
    many = b'{"model": {"type": "BPE", "vocab": {"a": 9007199254740992}, "merges": []}}'
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is no tokenizer"):
        metadata(folder_of(tmp_path / "many", {TOKENIZER: many}), {})
    said = sentencepiece_metadata()
    for key in ("tokens", "scores", "token_type"):
        with pytest.raises(CheckpointError, match=r"is no tokenizer|wanted as many"):
            text_files(said | {f"tokenizer.ggml.{key}": 3}, "m.gguf")
    with pytest.raises(CheckpointError, match="tokens and 0 scores"):
        text_files(said | {"tokenizer.ggml.scores": []}, "m.gguf")
    long = ["a" * 300, *said["tokenizer.ggml.tokens"][1:]]
    kinds = [1, *said["tokenizer.ggml.token_type"][1:]]
    with pytest.raises(CheckpointError, match="a token has 300 letters"):
        text_files(
            said | {"tokenizer.ggml.tokens": long, "tokenizer.ggml.token_type": kinds}, "m.gguf"
        )


def test_header_of_every_kind() -> None:
    values = {"a": True, "b": 3, "c": 0.5, "d": "x", "e": [1, -2], "f": [0.5], "g": ["y", ""]}
    head, starts, size = header(ConversionPlan(tensors=[], config={}, metadata=values))
    assert (starts, size) == ([], len(head))
    assert struct.unpack("<IQQ", head[4:24]) == (3, 0, len(values))
