"""A tokenizer's parts, read from the values of a GGUF file or from a Hugging Face folder.

Invariant: a text becomes the same ids as in `transformers`. So a GGUF file whose way of cutting
text into words is not known here for certain is refused by its name, not guessed at: almost right
cuts only digits and rows of spaces wrongly, which nobody sees.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minivllm.model_files import read_json

CONTROL, USER_DEFINED = 3, 4  # kinds in tokenizer.ggml.token_type
# Control tokens that end an answer, whatever the file calls its end of sequence.
END_TOKENS = ("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>")
# Two chat models' own patterns: contractions, words, digits (at most three | one), the rest.
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class TokenizerParts:
    """What a Tokenizer is made of."""

    backend: Backend  # text <-> ids, special tokens in the text included
    eos_token_ids: list[int]  # any of them ends the text
    special_tokens: dict[str, str]  # "bos_token" and the like, as chat templates name them
    chat_template: str | None  # jinja


def read_gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> TokenizerParts:
    """The tokenizer in a GGUF file's values; ValueError names what is missing or not supported."""
    model, words = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model != "gpt2" or words not in ("smollm", "gpt-2", "llama-bpe", "qwen2"):
        raise ValueError(
            f"{path}: the tokenizer {model!r} with the pre-tokenizer {words!r} is not supported; "
            "supported is 'gpt2' with smollm, gpt-2, llama-bpe or qwen2"
        )
    tokens, kinds, merges = (
        metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges")
    )
    if not tokens or not merges or len(kinds or []) != len(tokens):
        raise ValueError(
            f"{path}: a tokenizer needs tokens, merges and one type a token; found "
            f"{len(tokens or [])}, {len(merges or [])}, {len(kinds or [])}"
        )
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    try:
        backend = Backend(models.BPE(vocab, pairs, ignore_merges=words == "llama-bpe"))
    except (
        Exception
    ) as error:  # the library raises plain Exception for a merge outside the vocabulary
        raise ValueError(f"{path}: damaged tokenizer: {error}") from error
    backend.normalizer = normalizers.NFC() if words == "qwen2" else None
    backend.pre_tokenizer = _word_splitter(words)
    backend.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    backend.add_tokens(added)
    special = _gguf_special_tokens(path, metadata, tokens)
    starts = (
        ["bos_token"] if metadata.get("tokenizer.ggml.add_bos_token", words == "llama-bpe") else []
    )
    ends = ["eos_token"] if metadata.get("tokenizer.ggml.add_eos_token") else []
    _add_around(path, backend, special, starts, ends)
    template = metadata.get("tokenizer.chat_template")
    return TokenizerParts(backend, gguf_eos_token_ids(metadata), special, template)


def gguf_eos_token_ids(metadata: dict[str, Any]) -> list[int]:
    """The ids that end a text: the file's own first, then other control tokens known to end an
    answer."""
    stated = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    control = [i for i, kind in enumerate(kinds) if kind == CONTROL and tokens[i] in END_TOKENS]
    return list(dict.fromkeys([i for i in stated if i is not None] + control))


def read_folder_tokenizer(folder: Path) -> TokenizerParts:
    """The tokenizer in a Hugging Face folder; ValueError when tokenizer.json is missing or
    damaged."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{path} is missing (other forms of tokenizer are not supported)")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path} is no tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    special = _folder_special_tokens(folder)
    return TokenizerParts(backend, folder_eos_token_ids(folder), special, _folder_template(folder))


def folder_eos_token_ids(folder: Path) -> list[int]:
    """The ids that end a text: generation_config.json's, or else config.json's, and the tokenizer's
    own."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        stated = _read_optional(folder / name).get("eos_token_id")
        if stated is not None:
            ids += stated if isinstance(stated, list) else [stated]
            break
    token = _folder_special_tokens(folder).get("eos_token")
    added = _read_optional(folder / "tokenizer.json").get("added_tokens") or []
    ids += [entry["id"] for entry in added if entry["content"] == token]
    return list(dict.fromkeys(ids))


def _word_splitter(words: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut into words before the merges; all but the cut itself is byte level."""
    if words == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if words == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    pattern = Regex(LLAMA3_WORDS if words == "llama-bpe" else QWEN2_WORDS)
    split = pre_tokenizers.Split(pattern, behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])


def _gguf_special_tokens(path: Path, metadata: dict[str, Any], tokens: list[str]) -> dict[str, str]:
    special = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise ValueError(f"{path}: {key}_token_id {index} is outside the {len(tokens)} tokens")
        special[f"{name}_token"] = tokens[index]
    return special


def _add_around(
    path: Path, backend: Backend, special: dict[str, str], starts: list[str], ends: list[str]
) -> None:
    """Have `encode` put these special tokens before and after each text."""
    missing = [name for name in starts + ends if name not in special]
    if missing:
        raise ValueError(f"{path}: the tokenizer adds a {missing[0]} to each text but names none")
    if starts or ends:
        before, after = [special[name] for name in starts], [special[name] for name in ends]
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(token, backend.token_to_id(token)) for token in {*before, *after}],
        )


def _folder_special_tokens(folder: Path) -> dict[str, str]:
    config = _read_optional(folder / "tokenizer_config.json")
    special = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None:
            special[name] = token
    return special


def _folder_template(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = _read_optional(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
