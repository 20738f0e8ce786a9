"""The shape of the package: which half needs torch, which way imports point, how big a file is.

Everything is read from the source on disk, so a new file falls under the rules by itself.
"""

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import minivllm

PACKAGE = Path(minivllm.__file__).parent

# Modules that may load torch. Every other one in the package's own folder must do without.
TENSOR_HALF = {"attention", "kv_cache", "linear", "model", "sampler", "weights"}
TENSOR_HALF |= {"weights_folder", "weights_gguf", "device", "kv_budget"}
TENSOR_HALF |= {"ops", "cpp_ops", "cpp_build"}
MAY_USE_TRITON = {"triton_attention", "triton_ladder"}
MAY_USE_TORCH = TENSOR_HALF | MAY_USE_TRITON | {"executor", "llm", "__main__"}
# What must exist and load no torch: the half that decides, its fake twin, the engine between.
BOOKKEEPING = [
    "sampling_params",
    "config",
    "request",
    "request_queue",
    "allocator",
    "page_table",
    "kv_cache_manager",
    "scheduler",
    "fake_executor",
    "engine",
]
# The tensor half computes and knows nothing of these, which decide.
DECIDES = {"request", "request_queue", "allocator", "page_table", "prefix_cache"}
DECIDES |= {"kv_cache_manager", "scheduler", "engine"}
# Beside the core or on top of it: these import the core and are never imported by it.
OUTSIDE = ("baselines", "view", "lab", "__main__")

MAX_FILE_LINES = 200  # of code, docstrings and comments not counted
MAX_FUNCTION_LINES = 60  # docstring included


def module_files(package: Path) -> dict[str, Path]:
    """Map each module's dotted name to its file; a package is named by its folder."""
    files = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def is_type_checking(node: ast.AST) -> bool:
    """True for `if TYPE_CHECKING:`, whose body never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def import_nodes(tree: ast.AST, inside_functions: bool) -> list[ast.Import | ast.ImportFrom]:
    """The import statements that can run: all of them, or those that run with the module."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif is_type_checking(node):
            for statement in node.orelse:
                found += import_nodes(ast.Module([statement], []), inside_functions)
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += import_nodes(node, inside_functions)
    return found


def imported_names(name: str, path: Path, inside_functions: bool = True) -> list[str]:
    """Dotted names that a module imports: `from a import b` gives a.b, which may be a name in a."""
    names = []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in import_nodes(ast.parse(path.read_text(encoding="utf-8")), inside_functions):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
            continue
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, base] if base else above)
        names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def import_graph(package: Path) -> dict[str, list[str]]:
    """Map each module to the package's own modules that it imports, anywhere in the file."""
    files = module_files(package)
    graph = {}
    for name, path in files.items():
        targets = []
        for full in imported_names(name, path):
            target = full
            while target and target not in files:  # a name in a module: fall back to the module
                target = target.rpartition(".")[0]
            if target and target != name:
                targets.append(target)
        graph[name] = targets
    # The front door imports lazily, by a module's name in a string: an edge all the same.
    front = ast.walk(ast.parse(files[package.name].read_text(encoding="utf-8")))
    strings = {node.value for node in front if isinstance(node, ast.Constant)}
    graph[package.name] += sorted(name for name in files if name in strings)
    return graph


def find_cycle(graph: dict[str, list[str]]) -> list[str]:
    """A list of modules that import each other in a circle, or an empty list."""
    done = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in graph[name]:
            if cycle := visit(target, [*path, name]):
                return cycle
        done.add(name)
        return []

    for name in graph:
        if cycle := visit(name, []):
            return cycle
    return []


def is_core(name: str) -> bool:
    """True for minivllm.scheduler and its like, False for minivllm.view.trace."""
    return name.count(".") > 0 and name.split(".")[1] not in OUTSIDE


def count_code_lines(source: str) -> int:
    """Lines that hold code: not blank, not only a comment, not in a docstring."""
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT}
    ignored |= {tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in ignored:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def long_functions(source: str) -> list[str]:
    """The functions longer than MAX_FUNCTION_LINES, as "name: 71 lines"."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{node.name}: {length} lines")
    return found


FILES = module_files(PACKAGE)
OWN_FILES = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
TORCH_FREE = BOOKKEEPING + sorted(OWN_FILES - MAY_USE_TORCH - set(BOOKKEEPING))


# ---- bookkeeping imports no torch ----


@pytest.mark.parametrize("module", TORCH_FREE)
def test_bookkeeping_imports_no_torch(module: str):
    """Importing a bookkeeping module in a fresh interpreter leaves torch unloaded."""
    code = f"import sys, minivllm.{module}; sys.exit('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    hint = f"minivllm.{module} loads torch; does it belong in TENSOR_HALF above?"
    assert run.returncode == 0, run.stderr or hint


def test_the_package_itself_imports_no_torch_until_a_name_needs_it():
    """`import minivllm` and `dir(minivllm)` are light: the public names are looked up lazily."""
    code = "import sys, minivllm; dir(minivllm); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", minivllm.__all__)
def test_public_names_are_found(name: str):
    """Each name in __all__ has a home that defines it."""
    assert getattr(minivllm, name).__name__ == name


def test_an_unknown_public_name_is_an_attribute_error():
    """A misspelled name fails the way it does in any module, so hasattr and pickle work."""
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = minivllm.LMM


# ---- imports point one way ----


def test_imports_point_one_way():
    """No module imports itself through others, not even from inside a function."""
    cycle = find_cycle(import_graph(PACKAGE))
    assert not cycle, " -> ".join(cycle)


def test_the_core_never_imports_what_stands_beside_it():
    """baselines, view, lab and the command line import the core, never the other way round."""
    graph = import_graph(PACKAGE)
    wrong = [
        f"{name} imports {target}"
        for name, targets in graph.items()
        if is_core(name)
        for target in targets
        if not is_core(target) and target != PACKAGE.name
    ]
    assert not wrong


def test_the_core_imports_no_triton_with_the_module():
    """The core runs where no triton is: only the two files of kernels import it, others ask for
    those inside a function."""
    wrong = []
    for name, path in FILES.items():
        if not is_core(name) or name.split(".")[-1] in MAY_USE_TRITON:
            continue
        for full in imported_names(name, path, inside_functions=False):
            if full.split(".")[0] == "triton" or MAY_USE_TRITON & set(full.split(".")):
                wrong.append(f"{name} imports {full}")
    assert not wrong


def test_the_tensor_half_knows_nothing_of_requests():
    """It computes: tensors in, tensors out, with none of the modules that decide."""
    graph = import_graph(PACKAGE)
    wrong = [
        f"{name} imports {target}"
        for name, targets in graph.items()
        if name.split(".")[-1] in TENSOR_HALF and is_core(name)
        for target in targets
        if target.split(".")[-1] in DECIDES
    ]
    assert not wrong


# ---- sizes ----


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_one_concept(name: str):
    """A file has at most 200 lines of code; a longer one holds a second concept."""
    lines = count_code_lines(FILES[name].read_text(encoding="utf-8"))
    assert lines <= MAX_FILE_LINES, f"{name}: {lines} code lines, at most {MAX_FILE_LINES}"


@pytest.mark.parametrize("name", FILES)
def test_a_function_fits_on_a_screen(name: str):
    """A function has at most 60 lines, docstring included."""
    assert not long_functions(FILES[name].read_text(encoding="utf-8"))


# ---- the checks above can fail ----


@pytest.fixture
def fake_package(tmp_path: Path) -> Path:
    """Three modules in a circle; one import hides in a function, one is for type checkers only."""
    package = tmp_path / "fake"
    (package / "view").mkdir(parents=True)
    sources = {
        "__init__.py": "homes = {'f': 'fake.b'}\n",
        "a.py": "from fake.b import thing\n",
        "b.py": "def f():\n    from . import c\n    return c\n",
        "c.py": "import fake.a\n",
        "d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fake.a\n",
        "view/__init__.py": "",
        "view/e.py": "from ..a import thing\nfrom . import g\n",
        "view/g.py": "",
    }
    for file, source in sources.items():
        (package / file).write_text(source)
    return package


def test_a_circle_is_found(fake_package: Path):
    """An import inside a function closes the circle b -> c -> a -> b just the same."""
    assert find_cycle(import_graph(fake_package)) == ["fake.b", "fake.c", "fake.a", "fake.b"]


def test_the_graph_reads_each_kind_of_import(fake_package: Path):
    """Absolute, relative, of a name, of a module, lazy; none from a block that never runs."""
    graph = import_graph(fake_package)
    assert graph["fake"] == ["fake.b"]
    assert graph["fake.b"] == ["fake.c"]
    assert graph["fake.d"] == []
    assert graph["fake.view.e"] == ["fake.a", "fake.view.g"]


def test_an_import_inside_a_function_does_not_run_with_the_module(fake_package: Path):
    """What the triton rule allows: b imports c only when f is called."""
    path = fake_package / "b.py"
    assert imported_names("fake.b", path) == ["fake.c"]
    assert imported_names("fake.b", path, inside_functions=False) == []


def test_code_lines_leave_out_docstrings_and_comments():
    """Four lines of code: def, the two lines of the string that is no docstring, return."""
    module = '"""Module.\n\nMore.\n"""\n\n# comment\n'
    function = 'def f():\n    """Doc."""\n    x = """a\n    b"""\n    return x  # why\n'
    assert count_code_lines(module + function) == 4


def test_a_long_function_is_found():
    """61 lines are one too many, 60 are not."""
    body = "    x = 1\n"
    assert long_functions("def f():\n" + body * 60) == ["f: 61 lines"]
    assert long_functions("def f():\n" + body * 59) == []
