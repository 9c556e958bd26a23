"""The house rules (docs/architecture.md), as far as a machine can check them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHIPPED = sorted([*ROOT.glob("spindle_sim/**/*.py"), *ROOT.glob("backends/*/**/*.py")])
FILES = sorted([*SHIPPED, *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("tests/**/*.py")])
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
