"""A plan document is canonical, read strictly, and says where it is wrong."""

import contextlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.errors import PlanError, UsageError
from spindle_sim.plan import (
    FORMAT_VERSION,
    Plan,
    dump_plan,
    input_hash,
    load_plan,
    parse_plan,
    plan_schema,
    save_plan,
)
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.random_plans import plans
from tests.stated_plans import two_round_plan, two_task_plan

SCHEMA = Path(__file__).parent.parent.parent / "schemas" / "plan.schema.json"
Document = dict[str, Any]


def problems(text: str) -> list[str]:
    with pytest.raises(PlanError) as caught:
        parse_plan(text, "p.json")
    assert caught.value.exit_code == 3
    return str(caught.value).splitlines()


def edited(edit: Callable[[Document], object]) -> list[str]:
    document = json.loads(dump_plan(two_task_plan()))
    edit(document)
    return problems(json.dumps(document))


@given(plans())
@settings(max_examples=50)
def test_saving_and_loading_is_identity(plan: Plan) -> None:
    text = dump_plan(plan)
    again = parse_plan(text)
    assert again == plan
    assert dump_plan(again) == text


def test_equal_plans_are_equal_bytes_whatever_the_number_types() -> None:
    plan = two_round_plan()
    whole = replace(plan, optimum_s=3.0)
    memory = replace(plan.memory[0], activation_bytes=int(plan.memory[0].activation_bytes))
    seed: Any = np.int64(0)
    numbers = replace(plan, optimum_s=np.float64(3.0), seed=seed, memory=(memory, *plan.memory[1:]))
    assert numbers == whole
    assert dump_plan(numbers) == dump_plan(whole)
    assert dump_plan(whole).endswith("}\n")


def test_the_document_has_a_line_for_each_slice() -> None:
    lines = dump_plan(two_task_plan()).splitlines()
    assert sum(line.startswith('    {"id": "s') for line in lines) == 5


def test_a_number_that_json_lacks_is_not_written() -> None:
    with pytest.raises(PlanError, match="optimum_s: holds infinity or NaN"):
        dump_plan(replace(two_task_plan(), optimum_s=math.inf))


def test_the_published_schema_is_that_of_the_code_and_accepts_a_plan(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--update-golden"):
        SCHEMA.write_text(json.dumps(plan_schema(), indent=2) + "\n", encoding="utf-8")
    published = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert published == plan_schema()
    document = json.loads(dump_plan(two_task_plan()))
    validator = jsonschema.Draft202012Validator(published)
    validator.check_schema(published)
    assert not list(validator.iter_errors(document))
    document["slices"][0]["speed"] = 1
    assert list(validator.iter_errors(document))


def test_the_input_hash_is_the_sha256_of_the_canonical_json() -> None:
    cluster = make_cluster()
    assert input_hash(cluster) == input_hash(make_cluster())
    assert len(input_hash(cluster)) == 64
    assert input_hash(cluster) != input_hash(replace(cluster, num_nodes=3))
    assert input_hash(cluster) == input_hash(replace(cluster, oversubscription=1))


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.0", "2.0 is another major version: this program reads 1.0 to 1.1; make the plan again"),
        ("0.3", "0.3 is another major version"),
        ("1.7", "1.7 was written by a newer spindle-sim"),
        ("1", '"1" is no version'),
        (1.0, "1.0 is no version"),
        (None, "null is no version"),
        ("1.x", '"1.x" is no version'),
        ("\u0967.\u0966", "is no version"),  # digits, but not ASCII ones
    ],
)
def test_another_version_is_refused_before_the_shape(version: object, said: str) -> None:
    def edit(document: Document) -> None:
        document.clear()
        document.update(format_version=version, nothing="else fits")

    (problem,) = edited(edit)
    assert problem.startswith("p.json: format_version: ")
    assert said in problem


def test_a_document_without_version_is_asked_whether_it_is_a_plan() -> None:
    (problem,) = problems('{"traceEvents": []}')
    assert problem.startswith("p.json: format_version: is missing: is this a plan?")


def test_a_profile_is_told_as_such_in_one_line() -> None:
    (problem,) = problems('{"format_version": "1.1", "operators": [], "provenance": {}}')
    assert problem == "p.json: is a profile, not a plan: give it to --profile"


def test_every_wrong_field_is_named_with_path_and_value() -> None:
    def edit(document: Document) -> None:
        document["slices"][2]["devices"] = [0, "one"]
        document["slices"][3]["forward"] = document["slices"][3].pop("forward_s")
        document["metaops"][1]["backward"] = "half"
        document["workload"]["modules"][0]["blocks"][0]["operator"]["parameters"] = 1.5
        document["workload"]["modules"][1]["blocks"][0]["operator"]["kind"] = "convolution"
        document["flows"] = {}
        document["zero1"] = 1

    found = edited(edit)
    assert len(found) == 8
    for path, said in [
        ("slices[2].devices[1]", 'not "one"'),
        ("slices[3].forward_s", "is missing"),
        ("slices[3].forward", "is no field here; did you mean 'forward_s'?"),
        ("metaops[1].backward", "'full', 'input_only', 'weight_only' or 'none', not \"half\""),
        ("workload.modules[0].blocks[0].operator.parameters", "not 1.5"),
        ("workload.modules[1].blocks[0].operator", "convolution"),
        ("flows", "not {}"),
        ("zero1", "not 1"),
    ]:
        assert any(line.startswith(f"p.json: {path}: ") and said in line for line in found), found


def test_many_wrong_fields_are_counted() -> None:
    def edit(document: Document) -> None:
        document["slices"] = [{}] * 20

    found = edited(edit)
    assert len(found) == 51
    assert found[-1].endswith("more wrong fields")


def test_rules_of_workload_and_cluster_are_told_with_their_paths() -> None:
    def edit(document: Document) -> None:
        document["workload"]["tasks"][1]["batch_size"] = 0
        document["workload"]["modules"][0]["blocks"][0]["operator"]["sharded_parameters"] = (
            2_000_000
        )
        document["cluster"]["island_size"] = 3

    found = edited(edit)
    assert [line.split(": ")[1] for line in found] == [
        "workload.modules[0].blocks[0].operator.sharded_parameters",
        "workload.tasks[1].batch_size",
        "cluster.island_size",
    ]


@pytest.mark.parametrize(
    ("path", "edit"),
    [
        ("slices[1].backward_s", lambda d: d["slices"][1].update(backward_s=-1e-9)),
        ("slices[0].stage", lambda d: d["slices"][0].update(stage=-1)),
        ("memory[2].activation_bytes", lambda d: d["memory"][2].update(activation_bytes=-1)),
        ("optimum_s", lambda d: d.update(optimum_s=-1)),
        ("seed", lambda d: d.update(seed=-1)),
    ],
)
def test_a_negative_number_is_named(path: str, edit: Callable[[Document], object]) -> None:
    (problem,) = edited(edit)
    assert problem.startswith(f"p.json: {path}: must not be negative, not -1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("metaops: []\n", "p.json:1: is no JSON (column 1)"),
        ("[]", "is a JSON list"),
        ("3", "is a JSON int"),
        ('{"format_version": "1.0", "optimum_s": NaN}', "holds NaN"),
        ('{"format_version": "1.0", "optimum_s": -Infinity}', "holds -Infinity"),
        ('{"format_version": "1.0", "seed": 1, "seed": 2}', "seed: is given twice"),
        ('{"format_version": "1.0", "slices": ' + "[" * 100_000, "nested far deeper"),
        ('{"format_version": "1.0", "seed": ' + "9" * 5000 + "}", "is no plan"),
        ('{"format_version": "1.0", "strategy": "\ud800"}', "unicode"),
    ],
)
def test_what_is_no_plan_document_is_refused_clearly(text: str, said: str) -> None:
    assert said in problems(text)[0]


def test_a_number_too_large_for_a_float_is_refused_wherever_it_stands() -> None:
    for field in ("optimum_s", "traffic_bytes", "nic_efficiency"):
        text = re.sub(f'"{field}": [0-9.]+', f'"{field}": 1e999', dump_plan(two_task_plan()))
        assert set(problems(text)) == {"p.json: holds 1e999; every number must be finite"}


def test_deep_but_parsable_nesting_is_a_shape_error() -> None:
    text = dump_plan(two_task_plan()).replace('"seed": 0', '"seed": ' + "[" * 300 + "]" * 300)
    assert problems(text)[0].startswith("p.json")


@given(st.integers(min_value=0), st.data())
@settings(max_examples=80)
def test_a_truncated_or_damaged_document_gives_an_error_and_no_traceback(
    cut: int, data: st.DataObject
) -> None:
    text = dump_plan(two_task_plan())
    position = cut % len(text.rstrip())
    with pytest.raises(PlanError):
        parse_plan(text[:position])
    damaged = text[:position] + data.draw(st.text(max_size=3)) + text[position + 1 :]
    with contextlib.suppress(PlanError):  # the damage may have hit a name, which may be any
        assert isinstance(parse_plan(damaged), Plan)


def test_files_that_are_no_plan_are_refused_clearly(tmp_path: Path) -> None:
    binary = tmp_path / "binary.json"
    binary.write_bytes(b'{"format_version": "\xff\xfe"}')
    for path, said in [
        (tmp_path, "is a directory"),
        (tmp_path / "none.json", "no such file"),
        (binary, "isn't UTF-8 text (byte 20)"),
        (Path("bad\0name"), "null byte"),
    ]:
        with pytest.raises(PlanError) as caught:
            load_plan(path)
        assert said in str(caught.value)
        assert str(path) in str(caught.value)


def test_a_saved_plan_is_loaded_again_also_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(two_task_plan(), path)
    assert load_plan(path) == two_task_plan()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_plan(str(path)) == two_task_plan()


def test_saving_replaces_the_file_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    path.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    save_plan(two_task_plan(), link)
    assert link.is_symlink()
    assert load_plan(path) == two_task_plan()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.json", "plan.json"]


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "plan.json"):
        with pytest.raises(UsageError, match="can't be written"):
            save_plan(two_task_plan(), path)
    assert os.listdir(tmp_path) == []


def test_ten_thousand_slices_are_read_in_two_seconds() -> None:
    workload = make_workload({f"t{index}": ("a",) for index in range(100)}, repeat=100, batch=64)
    parts = [
        Part(metaop=f"t{task}/a/x", devices=(task % 64,), first_op=op, stage=task // 64 * 100 + op)
        for task in range(100)
        for op in range(100)
    ]
    plan = make_plan(workload, make_cluster(8, 8), parts)
    text = dump_plan(plan)
    started = time.process_time()
    assert parse_plan(text) == plan
    assert time.process_time() - started < 2.0


def test_the_version_read_is_the_version_written() -> None:
    assert json.loads(dump_plan(two_task_plan()))["format_version"] == FORMAT_VERSION
