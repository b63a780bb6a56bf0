"""`kvchat doctor`: what is here, what is wrong, and what to do about it. Changes nothing."""

from typing import Annotated

from kvchat.cli.commands.doctor.checks import CheckResult, CheckState, all_checks
from kvchat.cli.output.streams import Output
from kvchat.cli.parser.options import EngineOptions, Json, Ndjson
from kvchat.cli.parser.typer_parameters import Option, option_class


@option_class
class DoctorOptions(EngineOptions):
    """Options of looking at everything."""

    json: Json = False
    ndjson: Ndjson = False
    no_model: Annotated[bool, Option("--no-model", help="Do not load the model.")] = False


_NAME_WIDTH = 10


def doctor(options: DoctorOptions) -> int:
    """Check everything in turn, telling each as it is found; return the exit code of the first broken one."""
    settings = options.settings(unlock=False)
    output = Output()
    findings = []
    for finding in all_checks(settings, load_model=not options.no_model):
        findings.append(finding)
        if options.ndjson:
            output.json(_as_values(finding))
        elif not options.json:
            tell(output, finding)
    if options.json:
        output.json({"state": _worst(findings), "checks": [_as_values(finding) for finding in findings]})
    elif not options.ndjson and _worst(findings) == CheckState.OK:
        output.line("all is well")
    return next((finding.exit_code for finding in findings if finding.state == CheckState.BROKEN), 0)


def tell(output: Output, finding: CheckResult) -> None:
    """Print a finding for people: its lines below each other, then what to do."""
    first, *others = finding.lines
    indent = 9 + _NAME_WIDTH
    output.folded(f"{finding.state:<6}  {finding.name:<{_NAME_WIDTH}} {first}", indent)
    for line in others:
        output.folded(" " * indent + line, indent)
    if finding.advice is not None:
        output.folded(f"{' ' * indent}-> {finding.advice}", indent + 3)


def _worst(findings: list[CheckResult]) -> CheckState:
    order = list(CheckState)
    return max((finding.state for finding in findings), key=order.index, default=CheckState.OK)


def _as_values(finding: CheckResult) -> dict[str, object]:
    head: dict[str, object] = {"name": finding.name, "state": finding.state}
    return head | ({"advice": finding.advice} if finding.advice else {}) | finding.values
