"""Tokenizers of every kind keep their ids in grammars, and their special tokens are not text."""

import llguidance
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from mxc.errors import RequestError
from mxc.runtime.completions.grammar_tokens import GrammarTokens

PIECES = ["<unk>", "<s>", "a", "b", "<", ">", "t", "</s>"]
WORDS = {piece: number for number, piece in enumerate(PIECES)}
KINDS = {
    "bpe": models.BPE(vocab=WORDS, merges=[], unk_token="<unk>"),
    "words": models.WordLevel(vocab=WORDS, unk_token="<unk>"),
    "unigram": models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=0),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_ids_and_text(kind: str) -> None:
    tokenizer = Tokenizer(KINDS[kind])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<t>", special=False), AddedToken("ab", special=False)])
    tokens = GrammarTokens(tokenizer)
    assert tokens.write("<t>") == f"<[{tokenizer.token_to_id('<t>')}]>"
    assert tokens.write("ab") == '"ab"'
    assert (tokens.has("</s>"), tokens.has("<b>")) == (True, False)
    made = tokens.compiler_tokenizer(tokenizer.get_vocab_size(), ())
    assert isinstance(made, llguidance.LLTokenizer)
    special = [t for t in range(tokenizer.get_vocab_size()) if made.is_special_token(t)]
    assert special == [0, 1, 7, tokenizer.token_to_id("<t>")]
    assert made.eos_token == 7
    assert made.decode_bytes([2, 3, 4]) == b"ab<"
    assert tokenizer.token_to_id("<t>") not in made.tokenize_str("<t>")


def test_a_tokenizer_that_grammars_cannot_use_is_refused() -> None:
    tokens = GrammarTokens(Tokenizer(KINDS["words"]))
    with pytest.raises(RequestError, match=r"cannot be used for grammars: .*decoder"):
        tokens.compiler_tokenizer(len(PIECES), ())
