"""A user's workload file: what is read, and how every mistake is named."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import TypeAdapter

from spindle_sim.errors import InputError
from spindle_sim.workload import (
    BUILTIN_WORKLOADS,
    DataFlow,
    Workload,
    builtin_workload,
    load_workload,
    workload_schema,
)

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    (path for path in (ROOT / "examples").glob("*.yaml") if not path.stem.startswith("cluster")),
    key=lambda path: path.stem,
)

GOOD = """\
name: tiny
modules:
  - name: tower
    blocks:
      - name: layers
        repeat: 2
        operator: {kind: transformer_layer, width: 64, heads: 4, mlp_width: 256}
  - name: fusion
    frozen: true
    blocks:
      - {name: head, operator: {kind: projection, inner: 64, columns: 8}}
tasks:
  - name: first
    batch_size: 1e2
    uses:
      - {module: tower, tokens: 16}
      - {name: head, module: fusion, tokens: 1}
    flows: [tower -> head]
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def make(text: str) -> Path:
        path = tmp_path / "w.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return make


def mistakes(path: Path | str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(InputError) as caught:
        load_workload(path)
    return [(problem.line, problem.path, problem.message) for problem in caught.value.problems]


def test_a_cluster_file_is_told_as_such_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("name: lab\ngpu: a800\nnodes: 2\ndevices_per_node: 8\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_workload(path)
    (problem,) = caught.value.problems
    assert problem.message == "describes a cluster, not a workload: give it to --cluster"


def test_a_profile_is_told_as_such_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text('{"name": "p", "operators": [], "provenance": {}}', encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_workload(path)
    (problem,) = caught.value.problems
    assert problem.message == "is a profile, not a workload: give it to --profile"


def test_a_file_is_read_with_flows_as_arrows_and_uses_named_after_their_module(
    write: Callable[[str], Path],
) -> None:
    workload = load_workload(write(GOOD))
    (task,) = workload.tasks
    assert [use.name for use in task.uses] == ["tower", "head"]
    assert task.flows == (DataFlow(source="tower", target="head"),)
    assert task.batch_size == 100
    assert workload.module("fusion").frozen


def test_every_mistake_is_named_at_once_with_line_path_and_value(
    write: Callable[[str], Path],
) -> None:
    text = (
        GOOD.replace("repeat: 2", "repeat: 0")
        .replace("kind: projection", "kind: projecton")
        .replace("width: 64, heads: 4", "widht: 64, heads: two")
        .replace("frozen: true", "frozen: perhaps")
        .replace("batch_size: 1e2", "batch_size: true")
        .replace("module: tower, tokens: 16", "module: towr, tokens: 16, tokens: 17")
        .replace("tower -> head", "tower -> haed, tower to head")
    )
    found = mistakes(write(text))
    assert [(line, path) for line, path, _ in found] == [
        (6, "modules[0].blocks[0].repeat"),
        (7, "modules[0].blocks[0].operator.heads"),
        (7, "modules[0].blocks[0].operator.widht"),
        (7, "modules[0].blocks[0].operator.width"),
        (9, "modules[1].frozen"),
        (11, "modules[1].blocks[0].operator"),
        (14, "tasks[0].batch_size"),
        (16, "tasks[0].uses[0].module"),
        (16, "tasks[0].uses[0].tokens"),
        (18, "tasks[0].flows[0].source"),
        (18, "tasks[0].flows[0].target"),
        (18, "tasks[0].flows[1]"),
    ]
    messages = {path: message for _, path, message in found}
    assert "found 0" in messages["modules[0].blocks[0].repeat"]
    assert "'two'" in messages["modules[0].blocks[0].operator.heads"]
    assert "did you mean 'width'?" in messages["modules[0].blocks[0].operator.widht"]
    assert "did you mean 'projection'?" in messages["modules[1].blocks[0].operator"]
    assert "found true" in messages["tasks[0].batch_size"]
    assert "did you mean 'tower'?" in messages["tasks[0].uses[0].module"]
    assert "twice" in messages["tasks[0].uses[0].tokens"]
    assert "did you mean 'head'?" in messages["tasks[0].flows[0].target"]
    assert "source -> target" in messages["tasks[0].flows[1]"]


def test_every_wrong_name_is_a_problem_with_its_path(write: Callable[[str], Path]) -> None:
    text = (
        GOOD.replace("name: tiny", 'name: "tiny\\e[31m"')
        .replace("name: fusion", "name: fusion/of")
        .replace("module: fusion", "module: fusion/of")
        .replace("{name: head, operator", '{name: " ", operator')
        .replace("name: layers", "name: lay/ers")
        .replace("name: first", 'name: "first\\a"')
        .replace("{name: head, module", '{name: "", module')
        .replace("tower -> head", "{source: tower, target: ''}")
    )
    found = mistakes(write(text))
    assert [(line, path) for line, path, _ in found] == [
        (1, "name"),
        (5, "modules[0].blocks[0].name"),
        (8, "modules[1].name"),
        (11, "modules[1].blocks[0].name"),
        (13, "tasks[0].name"),
        (17, "tasks[0].uses[1].name"),
    ]
    assert all("has a" in message or "is blank" in message for _, _, message in found)


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "message"),
    [
        ("width: 64, heads: 4", "width: 64, heads: 5", 7, ".operator.heads", "must divide"),
        ("[tower -> head]", "[tower -> head, head -> tower]", 18, "tasks[0].flows", "cycle"),
        ("[tower -> head]", "[tower -> head, tower -> head]", 18, ".flows[1]", "twice"),
        ("- name: fusion", "- name: tower", 8, "modules[1]", "twice"),
        ("{name: head, module: fusion", "{name: tower, module: fusion", 17, ".uses[1]", "twice"),
        ("repeat: 2", "repeat: 900000", None, "", "900,001 operators"),
        ("repeat: 2", "repeat: 12345678901234567890", 6, ".repeat", "too large"),
        ("batch_size: 1e2", "batch_size: 1.5", 14, "batch_size", "1.5"),
        ("batch_size: 1e2", "batch_size: .nan", 14, "batch_size", "no number"),
        ("batch_size: 1e2", "batch_size:", 14, "batch_size", "no value"),
        ("batch_size: 1e2\n", "\n", 13, "batch_size", "required"),
        ("name: tiny", "name: !!python/object:os.system x", 1, "name", "tag"),
        ("kind: projection", "kind: [projection]", 11, ".operator", "kind"),
        ("kind: projection", "kind: {a: b}", 11, ".operator", "kind"),
        ("kind: projection, ", "", 11, ".operator", "known are: contrastive_loss, custom"),
        ("frozen: true", "norm: 1", 9, "modules[1].norm", "unknown field"),
    ],
)
def test_one_mistake_is_named_where_it_stands(
    write: Callable[[str], Path], old: str, new: str, line: int | None, path: str, message: str
) -> None:
    assert old in GOOD
    found = mistakes(write(GOOD.replace(old, new)))
    assert [entry for entry in found if message in entry[2] and entry[1].endswith(path)], found
    if line is not None:
        assert line in [entry[0] for entry in found if entry[1].endswith(path)]


def test_no_is_a_string_and_one_e_nine_is_a_number(write: Callable[[str], Path]) -> None:
    workload = load_workload(write(GOOD.replace("name: tiny", "name: no")))
    assert workload.name == "no"
    assert load_workload(write(GOOD.replace("1e2", "1e9"))).tasks[0].batch_size == 1_000_000_000


def test_an_alias_stands_for_what_it_names(write: Callable[[str], Path]) -> None:
    text = GOOD.replace("operator: {kind: tr", "operator: &layer {kind: tr").replace(
        "{name: head, operator: {kind: projection, inner: 64, columns: 8}}",
        "{name: head, operator: *layer}",
    )
    workload = load_workload(write(text))
    first, second = (module.blocks[0].operator for module in workload.modules)
    assert first == second


BOMB = "a0: &a0 [1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"\n---\n", "is empty"),
        (b"- a\n- b\n", "found a list"),
        (b"only words", "single value"),
        (b"name: caf\xe9\n", "not UTF-8"),
        (b"name: a\n  b: [\n", "not YAML"),
        (b"name: \x00\n", "not YAML"),
        (b"name: a\n---\nname: b\n", "more than one document"),
        (b"[" * 100_000, "nest"),
        (b"{a: " * 100_000, "nest"),
        (BOMB.encode(), "aliases counted in full"),
        (b"name: *nothing\n", "stands for nothing"),
        (b"a: &a [*a]\n", "nothing whole"),
        (b"[a, b]: 1\n", "one word"),
        (b"name: " + b"x" * (10 * 2**20), "larger than 10 MiB"),
        (b"n: " + b"9" * 9_999, "too large"),
    ],
    ids=range(17),
)
def test_a_file_that_is_no_workload_gives_one_clear_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(content)
    found = mistakes(path)
    assert [entry for entry in found if message in entry[2]], found


def test_a_path_that_is_no_readable_file_gives_one_clear_error(tmp_path: Path) -> None:
    assert mistakes(tmp_path / "none.yaml") == [(None, "", "no such file")]
    assert mistakes(tmp_path) == [(None, "", "is a directory, not a file")]
    ((_, _, message),) = mistakes("nul\0.yaml")
    assert message.startswith("can't be read")
    ((_, _, message),) = mistakes("x" * 5000)
    assert message.startswith("can't be read")
    if os.geteuid() != 0:
        locked = tmp_path / "locked.yaml"
        locked.write_text(GOOD)
        locked.chmod(0)
        ((_, _, message),) = mistakes(locked)
        assert "ermission" in message


def test_a_thousand_mistakes_are_cut_to_fifty(write: Callable[[str], Path]) -> None:
    text = GOOD + "".join(f"extra{n}: 1\n" for n in range(1000))
    found = mistakes(write(text))
    assert len(found) == 51
    assert "950 more" in found[-1][2]


def test_the_published_schema_is_current(golden: Callable[[str, str], None]) -> None:
    text = json.dumps(workload_schema(), indent=2, sort_keys=True) + "\n"
    golden("../../schemas/workload.schema.json", text)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_valid_and_fits_the_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") < 40
    workload = load_workload(path)
    assert workload.name == path.stem
    jsonschema.validate(yaml.safe_load(text), workload_schema())


def test_there_are_examples_of_a_gpt_a_clip_and_a_llava_model() -> None:
    assert [path.stem for path in EXAMPLES] == ["clip", "gpt", "gpt-7b", "llava"]


def test_the_examples_have_the_parameters_of_their_models() -> None:
    parameters = {path.stem: load_workload(path).parameters for path in EXAMPLES}
    assert parameters["clip"] == 427_616_513  # CLIP ViT-L/14, as published
    assert parameters["gpt"] == pytest.approx(1.558e9, rel=0.002)
    assert parameters["llava"] == pytest.approx(7.06e9, rel=0.005)
    assert load_workload(ROOT / "examples/llava.yaml").module("vision").frozen


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    data = yaml.safe_load(GOOD.replace("1e2", "100"))
    jsonschema.validate(data, workload_schema())
    data["modules"][0]["blocks"][0]["operator"]["widht"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, workload_schema())


@pytest.mark.parametrize("name", BUILTIN_WORKLOADS)
def test_a_workload_survives_json_unchanged(name: str) -> None:
    adapter, workload = TypeAdapter(Workload), builtin_workload(name)
    assert adapter.validate_json(adapter.dump_json(workload)) == workload
    assert adapter.validate_python(adapter.dump_python(workload)) == workload


@pytest.mark.parametrize("name", BUILTIN_WORKLOADS)
def test_a_dumped_workload_is_a_workload_file(write: Callable[[str], Path], name: str) -> None:
    workload = builtin_workload(name)
    data = TypeAdapter(Workload).dump_python(workload, mode="json")
    jsonschema.validate(data, workload_schema())
    assert load_workload(write(yaml.safe_dump(data, allow_unicode=True))) == workload
