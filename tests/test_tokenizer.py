"""Our tokenizer against transformers' own, and against byte pair encoding written out."""

from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest
from gguf_writer import tokenizer_values, write_gguf
from hf_folder import write_json, write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from need import need

from minivllm.gguf_file import GGUFFile
from minivllm.model_files import find_model
from minivllm.token_bytes import bytes_of_character
from minivllm.tokenizer import Tokenizer
from minivllm.tokenizer_files import TokenizerParts, read_gguf_tokenizer
from minivllm.weights import TINY_CONFIG

NASTY = [
    "",
    " ",
    "Hello world",
    "  two  spaces   three    four" + " " * 70 + "end ",
    "\t\ttabs\tand\r\nlines\n\n\n \n",
    "0 1 12 123 1234567890 3.14159 1e-10 0x1F 1,000,000",
    "   1    22     333",
    "½ Ⅻ ٣٤٥ १२३ 四十二 ①",
    "I'm you're we'll they've he'd IT'S DON'T ’tis",
    "emoji 🙂🙃 🇩🇪 👍🏽 ❤️ flag",
    "family 👨‍👩‍👧‍👦 and 🏳️‍🌈 joined",
    "العربية مكتوبة من اليمين إلى اليسار، و٣ أرقام",
    "中文沒有空格。日本語のテキスト、カタカナ。한국어 문장입니다.",
    "Ďábel ďábelský, naïve café, e\u0301 and é, ﬁ ligature",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}  # comment\n",
    "<html><body onclick=\"f('x')\">&nbsp;</body></html>",
    "https://example.org/a?b=c&d=%20#e user@example.org",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|im_end|> c<|im_end|><|im_end|>",
    "<|im_start |> <|IM_END|> <|im_end|<|im_end|>|>",
    "<repo_name><filename> <jupyter_code>\n<empty_output>",
    "zero\u200bwidth \u00a0nbsp \u2028line \ufeffbom \u0000nul \u0007bell \u007fdel",
    "\U0010ffff \ufffd \ue000 private",
    "ünïcödé" * 20 + "supercalifragilisticexpialidocious" * 5,
]
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 12 \n"}],
    [
        {"role": "user", "content": "a<|im_end|>b"},
        {"role": "assistant", "content": "é🙂"},
        {"role": "user", "content": "{{ 7 * 7 }}"},
    ],
]


@pytest.fixture(scope="module")
def reference(smollm2: str, transformers: ModuleType):
    """transformers' class for this model, with SmolLM2's published way of cutting words.

    The class is GPT-2's, which knows nothing of digits as words of their own ("   1" then has other
    spaces); SmolLM2's published tokenizer.json puts that step before it.
    """
    from tokenizers import pre_tokenizers

    values = GGUFFile(find_model(smollm2)).metadata
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    theirs = transformers.GPT2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]],
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        additional_special_tokens=[t for t, kind in zip(tokens, kinds, strict=True) if kind == 3],
        chat_template=values["tokenizer.chat_template"],
    )
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    return theirs


@pytest.mark.model
@pytest.mark.hf
def test_ids_and_text_are_those_of_transformers(reference, smollm2_tokenizer: Tokenizer):
    """Every nasty string: the same ids, and the same text back, special tokens shown or not."""
    for text in NASTY:
        ids = smollm2_tokenizer.encode(text)
        assert ids == reference(text).input_ids, text
        for skip in (True, False):
            expected = reference.decode(ids, skip_special_tokens=skip)
            assert smollm2_tokenizer.decode(ids, skip_special_tokens=skip) == expected, text
    assert smollm2_tokenizer.vocab_size == len(reference)
    assert smollm2_tokenizer.special_token_ids == {*range(17)}


@pytest.mark.model
@pytest.mark.hf
@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_chats_are_those_of_transformers(
    messages: list[dict[str, str]], prompt: bool, reference, smollm2_tokenizer: Tokenizer
):
    """SmolLM2's template adds a system message of its own where there is none; so do we."""
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert smollm2_tokenizer.apply_chat_template(messages, prompt) == expected
    assert ("named SmolLM" in expected) == (messages[0]["role"] != "system")


class WrittenOut:
    """Byte pair encoding as in the paper: the oldest merge first, again and again."""

    def __init__(self, metadata: dict[str, object]) -> None:
        need("regex")
        import regex

        tokens = metadata["tokenizer.ggml.tokens"]
        self.ids = {token: index for index, token in enumerate(tokens)}
        merges = metadata["tokenizer.ggml.merges"]
        self.rank = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.character = {byte: char for char, byte in bytes_of_character().items()}
        self.words = regex.compile(
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        )
        self.digit = regex.compile(r"(\p{N})")

    def encode(self, text: str) -> list[int]:
        pieces = [piece for piece in self.digit.split(text) if piece]
        words = [word for piece in pieces for word in self.words.findall(piece)]
        return [self.ids[part] for word in words for part in self.merge(word) if part in self.ids]

    @lru_cache  # noqa: B019
    def merge(self, word: str) -> tuple[str, ...]:
        parts = [self.character[byte] for byte in word.encode()]
        while True:
            pairs = list(zip(parts, parts[1:], strict=False))
            known = [pair for pair in pairs if pair in self.rank]
            if not known:
                return tuple(parts)
            best = min(known, key=self.rank.__getitem__)
            merged, at = [], 0
            while at < len(parts):
                size = 2 if tuple(parts[at : at + 2]) == best else 1
                merged.append("".join(parts[at : at + size]))
                at += size
            parts = merged


@pytest.fixture(scope="module")
def written_out(smollm2: str) -> WrittenOut:
    return WrittenOut(GGUFFile(find_model(smollm2)).metadata)


@pytest.mark.model
def test_ids_are_those_of_the_algorithm_written_out(
    written_out: WrittenOut, smollm2_tokenizer: Tokenizer
):
    """A second witness, which shares no line with the library."""
    for text in NASTY:
        if "<|" not in text and "<repo_name>" not in text:
            assert smollm2_tokenizer.encode(text) == written_out.encode(text), text
    assert smollm2_tokenizer.encode("Hello world") == [19556, 905]


@pytest.mark.model
@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("ab '’sTé1२ \n\t.<🙂\u0301中ـ\u200d"), max_size=30))
def test_random_text(text: str, written_out: WrittenOut, smollm2_tokenizer: Tokenizer):
    """Mixtures nobody would write: the same ids, and the text itself back."""
    ids = smollm2_tokenizer.encode(text)
    assert ids == written_out.encode(text)
    assert smollm2_tokenizer.decode(ids) == text


@pytest.mark.model
@pytest.mark.hf
def test_a_saved_folder_is_the_same_tokenizer(
    smollm2_tokenizer: Tokenizer, transformers: ModuleType, tmp_path: Path
):
    """Written by us, then read by us and by transformers: the same ids, chat and end."""
    write_tokenizer(tmp_path, smollm2_tokenizer)
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    ours = Tokenizer.from_model(str(tmp_path))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in NASTY:
        ids = smollm2_tokenizer.encode(text)
        assert ours.encode(text) == ids == theirs(text).input_ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    chat = smollm2_tokenizer.apply_chat_template(CHATS[2])
    assert ours.apply_chat_template(CHATS[2]) == chat
    assert theirs.apply_chat_template(CHATS[2], tokenize=False, add_generation_prompt=True) == chat
    assert ours.eos_token_ids == smollm2_tokenizer.eos_token_ids == [2, 0]


def small(**changes: object) -> TokenizerParts:
    """A hand-made GGUF tokenizer: 3 special tokens, 256 bytes, "Ġt", "he", "Ġthe", <tool_call>."""
    values = tokenizer_values() | {f"tokenizer.ggml.{key}": v for key, v in changes.items()}
    return read_gguf_tokenizer(Path("m.gguf"), {k: v for k, v in values.items() if v is not None})


def test_a_hand_made_file_by_hand(tmp_path: Path):
    """Ids that can be counted: byte b is b + 3; merges; special and user-defined tokens."""
    tokenizer = Tokenizer.from_model(str(write_gguf(tmp_path / "m.gguf", TINY_CONFIG, {})))
    assert tokenizer.encode("a t the<|im_end|>") == [97 + 3, 259, 261, 2]
    assert tokenizer.encode("<tool_call>") == [262]
    assert tokenizer.decode([259, 261, 2, 262]) == " t the<tool_call>"
    assert tokenizer.decode([1, 261], skip_special_tokens=False) == "<|im_start|> the"
    assert tokenizer.token_bytes(261) == b" the" and tokenizer.token_bytes(0xE2 + 3) == b"\xe2"
    assert tokenizer.token_bytes(999) == b""
    assert (tokenizer.vocab_size, tokenizer.special_token_ids) == (263, {0, 1, 2})
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}]) == "[x]"


def test_tokens_around_a_text():
    """Llama 3 begins each text with a token; a text from the chat template has it already."""
    both = Tokenizer(small(add_bos_token=True, add_eos_token=True))
    assert both.encode("a") == [1, 100, 2]
    assert both.encode("a", add_special_tokens=False) == [100]
    assert Tokenizer(small(pre="llama-bpe", add_bos_token=None)).encode("a") == [1, 100]
    with pytest.raises(ValueError, match="adds a bos_token to each text but names none"):
        small(add_bos_token=True, bos_token_id=None)


@pytest.mark.hf
@pytest.mark.parametrize("words", ["llama-bpe", "qwen2"])
def test_other_ways_of_cutting_words(words: str, transformers: ModuleType, tmp_path: Path):
    """Llama 3's and Qwen 2's, as transformers has them; merges across the cuts would show."""
    merges = ["1 2", "12 3", "123 4", "Ġ Ġ", "Ċ Ċ", "Ġ t", "h e", "Ġt he", "! Ċ", "' S", "( a"]
    tokens = tokenizer_values()["tokenizer.ggml.tokens"][:259] + [
        merge.replace(" ", "") for merge in merges
    ]
    values = {"tokens": tokens, "merges": merges, "token_type": [3] * 3 + [1] * (len(tokens) - 3)}
    changes = {f"tokenizer__ggml__{key}": value for key, value in values.items()}
    path = write_gguf(tmp_path / "m.gguf", TINY_CONFIG, {}, tokenizer__ggml__pre=words, **changes)
    ours = Tokenizer.from_model(str(path))
    if words == "qwen2":  # a class that composes characters too: e and an accent are one letter
        vocab = {token: index for index, token in enumerate(tokens)}
        theirs = transformers.Qwen2Tokenizer(
            vocab=vocab,
            merges=[tuple(merge.split(" ")) for merge in merges],
            additional_special_tokens=tokens[:3],
        )
    else:
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in [*NASTY, "1234 12 the(a) IT'S hi!\n\n\n"]:
        expected = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text, add_special_tokens=False) == expected, text


def test_llama3_takes_a_whole_word_from_the_vocabulary():
    """Its vocabulary holds words that no merge leads to; merges alone never find them."""
    values = tokenizer_values()
    more = {
        "tokens": [*values["tokenizer.ggml.tokens"], "Ġxyz"],
        "token_type": [*values["tokenizer.ggml.token_type"], 1],
    }
    llama3 = Tokenizer(small(pre="llama-bpe", add_bos_token=False, **more))
    assert llama3.encode(" xyz the") == [263, 261]
    assert Tokenizer(small(**more)).encode(" xyz")[1:] == [ord(letter) + 3 for letter in "xyz"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "tokenizer 'llama' with the pre-tokenizer 'smollm' is not supported"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported; .* smollm, gpt-2"),
        ({"pre": None}, "pre-tokenizer None is not supported"),
        ({"tokens": None}, "needs tokens, merges and one type a token; found 0, 3, 263"),
        ({"token_type": [1, 2]}, "found 263, 3, 2"),
        ({"merges": ["x y z"]}, "m.gguf: damaged tokenizer"),
        ({"merges": ["Ġ q"]}, "m.gguf: damaged tokenizer"),
        ({"eos_token_id": 263}, "eos_token_id 263 is outside the 263 tokens"),
    ],
)
def test_a_tokenizer_that_is_refused(changes: dict[str, object], message: str):
    """By name, and with the numbers: half right would be worse."""
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_a_folder_without_a_usable_tokenizer(tmp_path: Path):
    """None, a damaged one, one whose decoder we do not know."""
    write_json(tmp_path / "config.json", {})
    with pytest.raises(ValueError, match="tokenizer.json is missing"):
        Tokenizer.from_model(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ValueError, match="tokenizer.json is no tokenizer: "):
        Tokenizer.from_model(str(tmp_path))
    parts = small()
    from tokenizers import decoders

    parts.backend.decoder = decoders.WordPiece()
    parts.backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="decoder WordPiece is not supported"):
        Tokenizer.from_model(str(tmp_path))


def test_settings_for_training_do_not_shorten_prompts(tmp_path: Path):
    """tokenizer.json may carry a truncation and a padding of its training; neither is ours."""
    backend = small().backend
    backend.enable_truncation(3)
    backend.enable_padding(length=3)
    write_json(tmp_path / "config.json", {})
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_model(str(tmp_path))
    assert len(tokenizer.encode("abcdefgh")) == 8 and len(tokenizer.encode("a")) == 1


def test_where_a_folder_keeps_its_template(tmp_path: Path):
    """A file of its own, before tokenizer_config.json: one template, or several by name."""
    write_json(tmp_path / "config.json", {})
    small().backend.save(str(tmp_path / "tokenizer.json"))

    def chat() -> str:
        return Tokenizer.from_model(str(tmp_path)).apply_chat_template(CHATS[0])

    with pytest.raises(ValueError, match="this model has no chat template"):
        chat()
    config = {"eos_token": {"content": "<|im_end|>"}, "chat_template": "one{{ eos_token }}"}
    write_json(tmp_path / "tokenizer_config.json", config)
    assert chat() == "one<|im_end|>"
    several = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": several})
    assert chat() == "b"
    (tmp_path / "chat_template.jinja").write_text("c")
    assert chat() == "c"


@pytest.mark.parametrize("text", [None, 3, b"bytes", ["a"], "\ud800 lone surrogate"])
def test_what_is_no_text(text: object):
    """One line, not a TypeError from the library."""
    with pytest.raises(ValueError, match="^text "):
        Tokenizer.from_model("tiny").encode(text)


def test_tiny_is_bytes():
    """Any text, its UTF-8 bytes plus 3."""
    tokenizer = Tokenizer.from_model("tiny")
    for text in NASTY[:17]:
        ids = tokenizer.encode(text)
        assert ids == [byte + 3 for byte in text.encode()] and tokenizer.decode(ids) == text
    assert tokenizer.encode(tokenizer.apply_chat_template(CHATS[0]))[:1] == [1]
