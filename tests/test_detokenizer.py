"""Text token by token: D38, and equality with decoding everything at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from minivllm.detokenizer import IncrementalDetokenizer
from minivllm.token_bytes import bytes_of_character
from minivllm.tokenizer import Tokenizer
from minivllm.tokenizer_files import TokenizerParts

TINY = Tokenizer.from_model("tiny")


def deltas(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    """What each token adds, then what `finish` adds."""
    text = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [text.add([token_id]) for token_id in ids] + [text.finish()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ď", ["", "ď", ""]),
        ("a🙂b", ["a", "", "", "", "🙂", "b", ""]),
        ("👍🏽", ["", "", "", "👍", "", "", "", "🏽", ""]),
        ("", [""]),
    ],
)
def test_d38_one_token_is_not_one_character(text: str, expected: list[str]):
    """vllm-mlx showed a replacement character for each token that held part of a letter.

    Here a character appears with the token that completes it, once, and nothing before.
    """
    assert deltas(TINY, TINY.encode(text)) == expected


@pytest.mark.model
def test_d38_with_the_real_tokenizer(smollm2_tokenizer: Tokenizer):
    """SmolLM2 spreads these over 2 to 4 tokens each: no U+FFFD on the way, the text at the end."""
    for text in ("ď", "🙂", "ꙮ is an eye", "क्षत्रिय", "👨‍👩‍👧‍👦!"):
        ids = smollm2_tokenizer.encode(text)
        parts = deltas(smollm2_tokenizer, ids)
        assert len(ids) > len([part for part in parts if part])
        assert "\ufffd" not in "".join(parts) and "".join(parts) == text


def test_what_never_became_a_character():
    """Bytes that are no UTF-8: shown as U+FFFD once that is certain, at the end at the latest."""
    lead, ascii_ = 0xE2 + 3, ord("x") + 3
    assert deltas(TINY, [lead, ascii_]) == ["", "\ufffdx", ""]
    assert deltas(TINY, [lead]) == ["", "\ufffd"]
    assert deltas(TINY, [0xFF + 3, ascii_]) == ["\ufffd", "x", ""]


def test_a_true_replacement_character_is_not_held_back():
    """The model may write U+FFFD itself; it is a character like any other."""
    assert deltas(TINY, TINY.encode("\ufffd")) == ["", "", "\ufffd", ""]


def test_special_tokens_by_option():
    """Left out, even in the middle of a character, or shown as they read."""
    ids = [1, *TINY.encode("é")[:1], 2, *TINY.encode("é")[1:], 0]
    assert deltas(TINY, ids) == ["", "", "", "é", "", ""]
    ids = [1, *TINY.encode("é"), 2]
    assert deltas(TINY, ids, skip=False) == ["<|im_start|>", "", "é", "<|im_end|>", ""]


def test_added_tokens_are_written_as_they_read():
    """DeepSeek's special tokens hold characters outside the alphabet of bytes, others a space."""
    tokens = ["<｜end▁of▁text｜>", "<a b>", *bytes_of_character()]
    backend = Backend(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(tokens[:2])
    tokenizer = Tokenizer(TokenizerParts(backend, [0], {}, None))
    ids = [1, backend.token_to_id("x"), 0]
    assert deltas(tokenizer, ids, skip=False) == ["<a b>", "x", "<｜end▁of▁text｜>", ""]
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<a b>x<｜end▁of▁text｜>"


def test_unknown_ids_add_nothing():
    """A model may have more rows than its tokenizer has tokens."""
    assert deltas(TINY, [ord("a") + 3, 5000, ord("b") + 3]) == ["a", "", "b", ""]


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 260), max_size=40), skip=st.booleans())
def test_all_parts_are_the_whole(ids: list[int], skip: bool):
    """Any ids at all, valid UTF-8 or not: the parts joined are the text of everything."""
    assert "".join(deltas(TINY, ids, skip)) == TINY.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30), cuts=st.lists(st.integers(1, 5), max_size=60))
def test_no_replacement_characters_in_between(text: str, cuts: list[int]):
    """Several tokens at once, in any groups: always a beginning of the text, never a broken one."""
    ids, shown = TINY.encode(text), ""
    detokenizer = IncrementalDetokenizer(TINY)
    for size in [*cuts, len(ids)]:
        group, ids = ids[:size], ids[size:]
        shown += detokenizer.add(group)
        assert text.startswith(shown)
    assert shown == text and detokenizer.finish() == ""


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_all_parts_are_the_whole_with_the_real_tokenizer(
    data: st.DataObject, smollm2_tokenizer: Tokenizer
):
    """Random ids of SmolLM2, whose tokens are longer than a byte."""
    ids = data.draw(st.lists(st.integers(0, 49151), max_size=30))
    skip = data.draw(st.booleans())
    whole = smollm2_tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(deltas(smollm2_tokenizer, ids, skip)) == whole


def sentencepiece() -> Tokenizer:
    """Llama 2's kind of tokenizer: "▁" for a space, <0x..> for bytes, the first space is lost."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    tokens += ["▁Hello", "▁", "world", "▁a", "é"]
    backend = Backend(models.BPE({t: i for i, t in enumerate(tokens)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(t, special=True) for t in tokens[:3]])
    return Tokenizer(TokenizerParts(backend, [2], {}, None))


def test_sentencepiece_bytes_and_first_space():
    """The euro sign in three byte tokens; the space before the first word is not shown."""
    tokenizer = sentencepiece()
    euro = [byte + 3 for byte in "€".encode()]
    ids = [1, 259, 260, 261, *euro, 262, 2]
    assert deltas(tokenizer, ids) == ["", "Hello", " ", "world", "", "", "€", " a", "", ""]
    assert tokenizer.decode(ids) == "Hello world€ a"
    assert "".join(deltas(tokenizer, ids, skip=False)) == tokenizer.decode(ids, False)


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from([[1], [2], [259], [260], [261], [262], [263], [226 + 3, 130 + 3, 172 + 3]]),
        max_size=12,
    ),
    skip=st.booleans(),
)
def test_all_parts_are_the_whole_with_sentencepiece(pieces: list[list[int]], skip: bool):
    """Words, specials and whole characters in byte tokens, in any order."""
    tokenizer = sentencepiece()
    ids = [token_id for piece in pieces for token_id in piece]
    assert "".join(deltas(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


def test_the_alphabet_of_bytes():
    """256 characters, each visible; the library's own list of them is the same."""
    from tokenizers import pre_tokenizers

    alphabet = bytes_of_character()
    assert sorted(alphabet.values()) == list(range(256))
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    assert (alphabet["!"], alphabet["Ġ"], alphabet["Ċ"]) == (0x21, 0x20, 0x0A)
