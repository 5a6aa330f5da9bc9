"""The manual page of the jobs matches their options."""

from __future__ import annotations

import re
from pathlib import Path

from streamd_audit import options

ROOT = Path(__file__).parents[2]
MANUAL = (ROOT / "man" / "streamd-audit.1").read_text().replace("\\-", "-")


def section(name: str) -> str:
    return MANUAL.partition(f".SH {name}\n")[2].partition("\n.SH ")[0]


def test_each_job_has_a_name_and_a_description() -> None:
    jobs = {path.name for path in (ROOT / "spark").glob("*.py")} - {"verify.py"}
    assert set(re.findall(r"spark/(\w+\.py)", section("SYNOPSIS"))) == jobs
    assert set(re.findall(r"^\.B (\w+\.py)$", section("DESCRIPTION"), re.MULTILINE)) == jobs


def test_each_option_is_described() -> None:
    known = {name for action in options.parser("")._actions for name in action.option_strings}
    heads = re.findall(r"^\.TP\n(.*)", section("OPTIONS"), re.MULTILINE)
    told = {name for head in heads for name in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", head)}
    assert told == known


def test_each_environment_variable_is_documented() -> None:
    of_help = re.findall(r"AWS_\w+", options.parser("").format_help())
    assert of_help
    assert set(of_help) == set(re.findall(r"AWS_\w+", section("ENVIRONMENT")))


def test_each_exit_status_is_documented() -> None:
    told = re.findall(r"^\.B (\d)$", section("EXIT STATUS"), re.MULTILINE)
    assert set(map(int, told)) == {options.CLEAN, options.FINDINGS, options.NOT_RUN}
