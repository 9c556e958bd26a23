"""Runs the commands whose output README and docs/evaluation.md quote; puts it between the marks.

    python -m benchmarks.readme [--only comparison,cost] [--print]

Iteration times are the same on every run; planning times and memory are those of this machine.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "evaluation.md")
COMMANDS = {
    "main-job": ("-m", "spindle_sim", "compare"),
    "comparison": ("-m", "benchmarks.evaluate"),
    "cost": ("-m", "benchmarks.planning_scaling"),
    "accuracy": ("-m", "benchmarks.estimate_validate"),
    "placement": ("-m", "benchmarks.placement_ablation"),
}
TABLES = {"comparison"}  # print Markdown themselves


def output(name: str) -> str:
    """Give what a command prints, trailing blanks removed."""
    environment = dict(os.environ, COLUMNS="100", NO_COLOR="1")
    command = [sys.executable, *COMMANDS[name]]
    # evaluate exits 1 where a target isn't met: the table says so, and belongs on the page too.
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode and name not in TABLES:
        sys.exit(f"{' '.join(COMMANDS[name])} failed:\n{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def replaced(text: str, name: str, printed: str) -> str:
    """Give a page with a section's output between its marks, if it has them."""
    shown = "python " + " ".join(COMMANDS[name])
    body = printed if name in TABLES else f"```text\n{printed}\n```"
    pattern = re.compile(
        rf"(<!-- benchmarks:{name} BEGIN[^>]*-->\n).*?(<!-- benchmarks:{name} END -->)", re.DOTALL
    )
    return pattern.sub(lambda m: f"{m[1]}\n`{shown}` prints:\n\n{body}\n\n{m[2]}", text)


def main() -> None:
    """Run the commands and rewrite the pages, or print what they print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(COMMANDS), help="names, separated by commas")
    parser.add_argument(
        "--print", action="store_true", help="print, and leave the pages as they are"
    )
    arguments = parser.parse_args()
    for name in arguments.only.split(","):
        printed = output(name)
        if arguments.print:
            print(f"## {name}\n{printed}\n", flush=True)
            continue
        texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
        if not any(f"benchmarks:{name} BEGIN" in text for text in texts.values()):
            sys.exit(f"no page has marks for {name}")
        for page, text in texts.items():
            page.write_text(replaced(text, name, printed), encoding="utf-8")


if __name__ == "__main__":
    main()
