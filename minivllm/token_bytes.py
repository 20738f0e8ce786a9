"""A token's text as bytes, which is what a token really is: a character may be spread over several.

    byte level (GPT-2, Llama 3, Qwen, SmolLM2)   "Ġhello" -> b" hello"     "âĤ" -> b"\\xe2\\x82"
    SentencePiece (Llama 2, Mistral)             "▁hello" -> b" hello"     "<0xE2>" -> b"\\xe2"

Joining the bytes of all tokens, then decoding them, gives the text.
"""

import json
import re
from collections.abc import Callable

from tokenizers import Tokenizer as Backend

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def bytes_of_character() -> dict[str, int]:
    """Byte level's alphabet: the visible character that stands for each of the 256 bytes.

    188 bytes stand for themselves ("!" is 0x21); the others follow from U+0100 on in order, so that
    a space (the 33rd of them) is U+0120.

    >>> bytes_of_character()["Ġ"]
    32
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in sorted(visible)} | {
        chr(0x100 + rank): byte for rank, byte in enumerate(others)
    }


def token_to_bytes(backend: Backend) -> tuple[Callable[[str], bytes], bool]:
    """The function token -> bytes for a tokenizer, and whether a text loses its first space.

    Raises ValueError naming the decoder when it is neither byte level nor SentencePiece's.
    """
    kinds = _decoder_kinds(backend)
    if kinds == ["ByteLevel"]:
        alphabet = bytes_of_character()

        def byte_level(token: str) -> bytes:
            if all(character in alphabet for character in token):
                return bytes(alphabet[character] for character in token)
            return token.encode()  # an added token, written as it reads

        return byte_level, False
    if "ByteFallback" in kinds and {*kinds} <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return _sentencepiece, "Strip" in kinds
    raise ValueError(f"the tokenizer's decoder {' + '.join(kinds) or 'none'} is not supported")


def _sentencepiece(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _decoder_kinds(backend: Backend) -> list[str]:
    """The decoder's steps by name; a tokenizer tells them only in its saved form."""
    if backend.decoder is None:
        return []
    saved = json.loads(backend.decoder.__getstate__())
    return [step["type"] for step in saved.get("decoders", [saved])]
