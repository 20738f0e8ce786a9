"""Public traces from their files: the Azure CSV and the Mooncake JSONL, with the traps of each.

Neither holds prompts. Azure: lines end with CRLF, times have seven digits behind the point (one
more than Python's datetime takes), the last line has no end. Mooncake: times are milliseconds,
`hash_ids` name the prompt's blocks of 512 tokens, each chained to the one before, and the last
block may be partial: it can be named again only by the same whole prompt and holds no reusable
block of 512, so it is left out. A bad row is refused with the number of its line.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from minivllm.lab.jobs import Job
from minivllm.sampling_params import is_int

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
MOONCAKE_BLOCK = 512


def load_azure(path: str | Path) -> list[Job]:
    """The jobs of an Azure LLM inference trace (2023); arrivals in seconds since the first.

    Raises ValueError, naming the line, for a row that is none.
    """
    lines = _read_lines(path)
    if not lines or lines[0].strip() != AZURE_HEADER:
        raise ValueError(f"{path}, line 1: the header must be {AZURE_HEADER}")
    rows = [
        _azure_row(line, f"{path}, line {number}")
        for number, line in enumerate(lines[1:], start=2)
        if line.strip()
    ]
    if not rows:
        raise ValueError(f"{path} holds no request")
    first = rows[0][0]
    return [Job(prompt, output, seconds - first) for seconds, prompt, output in rows]


def _azure_row(line: str, where: str) -> tuple[float, int, int]:
    try:
        stamp, prompt, output = line.strip().split(",")
        whole, _, digits = stamp.partition(".")
        # The fraction is added by hand: datetime reads at most six digits.
        moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S") - datetime(2000, 1, 1)
        seconds = moment.total_seconds() + int(digits or 0) / 10 ** len(digits)
        row = seconds, int(prompt), int(output)
    except ValueError as error:
        raise ValueError(f"{where}: {line.strip()!r} is no row ({error})") from None
    if row[1] < 1 or row[2] < 1:
        raise ValueError(f"{where}: token counts must be at least 1, got {row[1]} and {row[2]}")
    return row


def load_mooncake(path: str | Path) -> list[Job]:
    """The jobs of a Mooncake trace; `block_hashes` are its full blocks of 512 tokens.

    Raises ValueError, naming the line, for a row that is none.
    """
    return [
        _mooncake_row(line, f"{path}, line {number}")
        for number, line in enumerate(_read_lines(path), start=1)
        if line.strip()
    ]


def _mooncake_row(line: str, where: str) -> Job:
    try:
        row = json.loads(line)
        lengths = row["timestamp"], row["input_length"], row["output_length"]
        hash_ids = row["hash_ids"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{where}: {line.strip():.60} is no row ({what})") from None
    milliseconds, prompt, output = lengths
    if not all(map(is_int, lengths)) or milliseconds < 0 or prompt < 1 or output < 1:
        raise ValueError(f"{where}: timestamp, input_length and output_length are {lengths}")
    if not isinstance(hash_ids, list) or not all(map(is_int, hash_ids)):
        raise ValueError(f"{where}: hash_ids must be a list of integers")
    if len(hash_ids) != -(-prompt // MOONCAKE_BLOCK):
        raise ValueError(
            f"{where}: {prompt} tokens are {-(-prompt // MOONCAKE_BLOCK)} blocks, and there are "
            f"{len(hash_ids)} hash_ids"
        )
    full = prompt // MOONCAKE_BLOCK
    return Job(prompt, output, milliseconds / 1000, block_hashes=tuple(hash_ids[:full]))


def _read_lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: {error}") from None
