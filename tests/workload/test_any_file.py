"""Whatever a file holds, workload or cluster, it gives an object or an `InputError`."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.cluster import Cluster, load_cluster
from spindle_sim.errors import InputError
from spindle_sim.workload import BUILTIN_WORKLOADS, Workload, builtin_workload, load_workload

ROOT = Path(__file__).parents[2]
Reader = Callable[[Path], Workload | Cluster]
READERS: list[Reader] = [load_workload, load_cluster]
WHOLE: dict[Reader, str] = {
    load_workload: (ROOT / "examples/llava.yaml").read_text(encoding="utf-8"),
    load_cluster: (ROOT / "examples/cluster.yaml").read_text(encoding="utf-8"),
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
KEYS = st.sampled_from(
    ["name", "modules", "tasks", "blocks", "operator", "kind", "gpu", "nodes", "uses", "flows", "x"]
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)


def read(reader: Reader, path: Path) -> None:
    """Read the file; a wrong one has to name at least one problem, with its file."""
    problems = None
    try:
        reader(path)
    except InputError as error:
        problems = error.problems
    assert problems is None or (problems and all(p.source == str(path) for p in problems))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any") / "file.yaml"


@pytest.mark.parametrize("reader", READERS)
@given(content=st.binary(max_size=60))
def test_any_bytes(reader: Reader, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    read(reader, path)


@pytest.mark.parametrize("reader", READERS)
@given(tree=st.dictionaries(KEYS, TREES, max_size=5))
def test_any_tree(reader: Reader, path: Path, tree: object) -> None:
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    read(reader, path)


@pytest.mark.parametrize("reader", READERS)
@given(data=st.data())
def test_a_right_file_with_one_word_replaced(
    reader: Reader, path: Path, data: st.DataObject
) -> None:
    text = WHOLE[reader]
    word = data.draw(st.sampled_from(list(re.finditer(r"[\w./-]+|[:,\[\]{}>-]", text))))
    other = data.draw(
        st.sampled_from(["", "0", "-1", "1e9", "true", "~", "[]", "{}", "word", ":", "*a", "1e999"])
    )
    path.write_text(text[: word.start()] + other + text[word.end() :], encoding="utf-8")
    read(reader, path)


def test_a_large_wrong_file_is_refused_in_reasonable_time(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_text("name: a\ntasks: []\nmodules: [" + "{a: 1}," * 33_000 + "]\n")
    with pytest.raises(InputError) as caught:
        load_workload(large)
    assert len(caught.value.problems) == 51


@pytest.mark.parametrize("page", ["workloads", "clusters"])
def test_the_example_of_the_documentation_is_read_as_it_stands(page: str, tmp_path: Path) -> None:
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    file = tmp_path / "example.yaml"
    file.write_text(example, encoding="utf-8")
    readers: dict[str, Reader] = {"workloads": load_workload, "clusters": load_cluster}
    assert readers[page](file).name in {"pair", "lab"}


@pytest.mark.parametrize("name", BUILTIN_WORKLOADS)
def test_the_documentation_has_the_parameters_that_are_counted(name: str) -> None:
    text = (ROOT / "docs/workloads.md").read_text(encoding="utf-8")
    workload = builtin_workload(name)
    assert f"{workload.parameters:,}" in text
    for module in workload.modules:
        assert f"{module.parameters:,}" in text
    for task in workload.tasks:
        assert f"| {task.name} | {task.batch_size} |" in text
