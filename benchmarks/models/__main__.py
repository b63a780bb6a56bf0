"""Every causal-LM class of transformers on kvchat: `python -m benchmarks.models [NAME...] [--write FILE]`.

Each class gets a tiny model with random weights and is held to transformers' `generate` in float32. Without
--write the rows are only printed. The status is 1 if an answer was wrong.
"""

import argparse
import logging
import platform
import sys
import warnings
from pathlib import Path

import torch
import transformers

from benchmarks.models.configs import Case, all_cases
from benchmarks.models.survey import Finding, survey
from benchmarks.models.table import page


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models", description="Which models run, and by which route."
    )
    parser.add_argument("names", nargs="*", help="model types or classes; all of them without any")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page, docs/models.md, here")
    arguments = parser.parse_args()
    if arguments.write and arguments.names:
        parser.error("the page lists every class; leave the names out to write it")
    _be_quiet()
    findings = [_surveyed(case) for case in all_cases() if _is_wanted(case, arguments.names)]
    if arguments.write:
        arguments.write.write_text(page(findings, _versions()), encoding="utf-8")
    return int(any(finding.outcome == "wrong" for finding in findings))


def _be_quiet() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("kvchat").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


def _is_wanted(case: Case, names: list[str]) -> bool:
    return not names or not {case.model_type, case.class_name, case.name}.isdisjoint(names)


def _surveyed(case: Case) -> Finding:
    finding = survey(case)
    print(
        " | ".join((finding.outcome, finding.name, finding.route, finding.groups, finding.reason)), flush=True
    )
    return finding


def _versions() -> str:
    return f"transformers {transformers.__version__}, torch {torch.__version__}, {platform.machine()}"


if __name__ == "__main__":
    sys.exit(main())
