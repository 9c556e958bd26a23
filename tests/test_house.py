"""The house rules (docs/architecture.md), as far as a machine can check them."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHIPPED = sorted([*ROOT.glob("spindle_sim/**/*.py"), *ROOT.glob("backends/*/**/*.py")])
FILES = sorted([*SHIPPED, *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("tests/**/*.py")])
RUN = sorted([*SHIPPED, *ROOT.glob("traces/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])
DATA = [
    path
    for path in SHIPPED
    if {"workload", "cluster", "metrics"} & set(path.parts)
    or path.name in {"errors.py", "timeline.py", "metagraph.py"}
    or path.parts[-2:] == ("plan", "model.py")
]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL_PARAMETERS = 5
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
PLAIN_EXCEPTIONS = {"Exception", "BaseException", "ValueError", "RuntimeError", "TypeError"}
UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# What has a safe form, and what doesn't: torch's collectives of objects and its checkpoints' own
# exchange are pickles, and so is what `torch.load` reads unless it is told `weights_only`.
UNSAFE_NAMES = {
    "all_gather_object",
    "broadcast_object_list",
    "eval",
    "exec",
    "full_load",
    "gather_object",
    "recv_object_list",
    "rpc",
    "scatter_object_list",
    "send_object_list",
    "state_dict_loader",
    "state_dict_saver",
    "unsafe_load",
}
UNSAFE_CALLS = {
    "torch.load": "weights_only=True",
    "yaml.load": "Loader=yaml.SafeLoader",
    "yaml.load_all": "Loader=yaml.SafeLoader",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions(path: Path) -> list[Function]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_file_is_short_and_named_after_its_idea(path: Path) -> None:
    assert path.stem.strip("_") not in VAGUE_NAMES, "name the file after the thing in it"
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_FILE_LINES, f"{lines} lines: split the file by idea"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_function_is_short(path: Path) -> None:
    long = [
        f"line {node.lineno}, {node.name}: {(node.end_lineno or node.lineno) - node.lineno + 1}"
        for node in _functions(path)
        if (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert not long, "lines of a function"


@pytest.mark.parametrize("path", SHIPPED, ids=_name)
def test_a_function_takes_few_positional_parameters(path: Path) -> None:
    many = [
        f"line {node.lineno}, {node.name}: {len(node.args.posonlyargs) + len(node.args.args)}"
        for node in _functions(path)
        if len([*node.args.posonlyargs, *node.args.args]) > MAX_POSITIONAL_PARAMETERS
    ]
    assert not many, "make the rest keyword-only"


@pytest.mark.parametrize("path", SHIPPED, ids=_name)
def test_no_module_keeps_state(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f"line {node.lineno}: no global state"


@pytest.mark.parametrize("path", SHIPPED, ids=_name)
def test_a_module_says_what_it_is(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert re.search(r"\w", text), "a module begins with what it is"


@pytest.mark.parametrize("path", SHIPPED, ids=_name)
def test_only_the_command_line_reads_the_environment(path: Path) -> None:
    if (ROOT / "spindle_sim" / "cli") in path.parents:
        return
    text = path.read_text(encoding="utf-8")
    assert "os.environ" not in text, "pass it in as an argument"
    assert "getenv" not in text, "pass it in as an argument"


@pytest.mark.parametrize("path", SHIPPED, ids=_name)
def test_a_users_mistake_raises_a_spindle_error(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            raised = node.exc.func
            name = raised.id if isinstance(raised, ast.Name) else ""
            assert name not in PLAIN_EXCEPTIONS, f"line {node.lineno}: raise a SpindleError"


@pytest.mark.parametrize("path", RUN, ids=_name)
def test_nothing_that_is_read_can_run_code(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not list(_unsafe(tree)), "read and send JSON, safetensors or tensors"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import numpy, dill as d",
        "from pickle import loads",
        "from torch.distributed import gather_object as gather",
        "from torch.distributed.checkpoint.state_dict_saver import save",
        "import torch.distributed.checkpoint.state_dict_loader as loading",
        "dist.broadcast_object_list(told)",
        "dist.rpc.init_rpc('a')",
        "eval(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "yaml.load(text, Loader=yaml.Loader)",
        "numpy.load(path, allow_pickle=True)",
    ],
)
def test_what_runs_code_when_it_is_read_is_noticed(code: str) -> None:
    assert list(_unsafe(ast.parse(code)))


def test_safe_readers_are_let_through() -> None:
    code = (
        "torch.load(path, weights_only=True); yaml.load(text, Loader=yaml.SafeLoader)\n"
        "json.loads(text); model.eval(); dist.all_gather(parts, own)"
    )
    assert not list(_unsafe(ast.parse(code)))


def _unsafe(tree: ast.AST) -> Iterator[str]:
    """Give what could run code that comes with data, as "line 3: pickle"."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                parts = {part for item in names for part in item.name.split(".")}
            case ast.ImportFrom(module=module, names=names):
                parts = {*(module or "").split("."), *(item.name for item in names)}
            case ast.Name(id=name):
                parts = {name}
            case ast.Attribute(attr=name) if name != "eval":  # a module's: it evaluates nothing
                parts = {name}
            case ast.Call():
                parts = set(_unsafe_call(node))
            case _:
                continue
        for name in sorted(parts & (UNSAFE_MODULES | UNSAFE_NAMES | UNSAFE_CALLS.keys())):
            yield f"line {node.lineno}: {name}"


def _unsafe_call(call: ast.Call) -> Iterator[str]:
    given = {ast.unparse(item) for item in call.keywords}
    name = ast.unparse(call.func)
    if name in UNSAFE_CALLS and UNSAFE_CALLS[name] not in given:
        yield name
    if "allow_pickle=True" in given:
        yield "pickle"


@pytest.mark.parametrize("path", DATA, ids=_name)
def test_data_are_frozen_slotted_and_made_by_name(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for decorator in map(ast.unparse, node.decorator_list):
                if decorator.startswith("dataclass"):
                    wanted = "dataclass(frozen=True, slots=True, kw_only=True)"
                    assert decorator == wanted, node.name


def _tool(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_finds_nothing() -> None:
    _tool("ruff", "check", ".")


def test_the_code_is_formatted() -> None:
    _tool("ruff", "format", "--check", ".")


@pytest.mark.slow
def test_the_types_hold() -> None:
    _tool("mypy")
