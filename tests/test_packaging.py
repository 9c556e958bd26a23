"""The source distribution is the repository: whoever unpacks it can read, test and measure."""

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ADDED_ANYWAY = {".gitignore", "pyproject.toml"}  # by the build backend


def test_the_source_distribution_holds_every_folder_and_file_of_the_repository() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not in a checkout")
    tracked = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {name.removeprefix("/") for name in included} | ADDED_ANYWAY == tracked
