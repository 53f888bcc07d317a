"""Rules for the pipeline section."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stacks.capacity.plan import processes_per_node
from stacks.config import DeploymentConfig
from stacks.config.pipeline import StepConfig
from stacks.config.pipeline.conditions import ConditionError, parse_condition
from stacks.config.pipeline.members import count, step_members
from stacks.config.pipeline.steps import reported
from stacks.config.slots import slot
from stacks.config.sweep import MAX_MEMBERS, SweepError
from stacks.errors import Problem
from stacks.validators import capacity, market

PATH = "pipeline.steps"
SHOWN_PROBLEMS = 20


def _steps(config: DeploymentConfig) -> dict[str, StepConfig]:
    return {} if config.pipeline is None else config.pipeline.steps


def engine(config: DeploymentConfig) -> Iterator[Problem]:
    """Pipelines run on the fleets of a deployment."""
    if config.pipeline is not None and config.engine != "fleet":
        yield Problem("pipeline", "set", f"is not supported with engine: {config.engine}", "remove the section")


def order(config: DeploymentConfig) -> Iterator[Problem]:
    """The steps form a chain: one first step, and each other step follows a different step."""
    steps = _steps(config)
    first = [name for name, step in steps.items() if step.after is None]
    for name in first[1:]:
        rule = f"is not set, but {first[0]} is already the first step"
        yield Problem(f"{PATH}.{name}.after", None, rule, "set the step that it follows")
    followers: dict[str, str] = {}
    for name, step in steps.items():
        path = f"{PATH}.{name}.after"
        if step.after is None:
            continue
        if step.after == name:
            yield Problem(path, step.after, "is the step itself", "set another step")
        elif step.after not in steps:
            rule = f"is not a step; the steps are {', '.join(steps)}"
            yield Problem(path, step.after, rule, "correct the name")
        elif step.after in followers:
            rule = f"is already followed by {followers[step.after]}; the steps form a chain"
            yield Problem(path, step.after, rule, f"let this step follow {followers[step.after]}")
        else:
            followers[step.after] = name
    circle = [name for name in steps if _is_circular(steps, name)]
    if circle:
        rule = "is part of a cycle"
        yield Problem(f"{PATH}.{circle[0]}.after", steps[circle[0]].after, rule, "remove one `after` of the cycle")


def _is_circular(steps: dict[str, StepConfig], start: str) -> bool:
    seen: set[str] = set()
    name: str | None = start
    while name in steps and name not in seen:
        assert name is not None
        seen.add(name)
        name = steps[name].after
        if name == start:
            return True
    return False


def kinds(config: DeploymentConfig) -> Iterator[Problem]:
    """Each key applies to the kind of its step."""
    for name, step in _steps(config).items():
        path = f"{PATH}.{name}"
        if step.function is not None and step.run != "train":
            yield Problem(f"{path}.run", step.run, "is set, but function is too", "set only one of the two")
        listed = _listed(step)
        if len(listed) > 1:
            yield Problem(path, ", ".join(listed), "sets members more than once", "set only one of these keys")
        if listed and step.kind != "train":
            rule = f"is set, but a step of kind {step.kind} has one member"
            yield Problem(f"{path}.{listed[0]}", "set", rule, "remove it")
        if step.reports and step.kind != "function":
            yield Problem(f"{path}.reports", ", ".join(step.reports), "applies only to a function", "remove it")
        if step.kind == "prepare" and config.training.prepare is None:
            yield Problem(f"{path}.run", step.run, "requires training.prepare, which is not set", "set it")
        if step.kind == "export" and step.after is None:
            yield Problem(f"{path}.after", None, "is not set, but an export needs weights", "set a step that trains")


def functions(config: DeploymentConfig) -> Iterator[Problem]:
    """A function outside of the trainer is in the user's code."""
    for name, step in _steps(config).items():
        if step.function is not None and not step.function.startswith("training.") and config.training.code is None:
            rule = "is not part of the trainer, and training.code is not set"
            yield Problem(f"{PATH}.{name}.function", step.function, rule, "set training.code to the folder with it")


def sweeps(config: DeploymentConfig) -> Iterator[Problem]:
    """Every member is a valid configuration that the run's processes can train."""
    for name, step in _steps(config).items():
        world = _processes(config, step)
        path = f"{PATH}.{name}.{(_listed(step) or ['sweep'])[-1]}"
        if count(step) > MAX_MEMBERS:
            rule = f"has {count(step)} members, more than {MAX_MEMBERS}"
            yield Problem(path, count(step), rule, "list fewer values")
            continue
        try:
            found = step_members(config.training.config, step)
        except SweepError as error:
            for key, rule in error.problems[:SHOWN_PROBLEMS]:
                yield Problem(f"{path}.{key}".rstrip("."), key or None, rule, "correct the members")
            continue
        if step.parallel > len(found):
            rule = f"is more than the step's members ({len(found)})"
            yield Problem(f"{PATH}.{name}.parallel", step.parallel, rule, "lower it")
        wrong = [(each, text) for each in found if step.kind == "train" for text in each.config.problems_at(world)]
        for each, text in wrong[:SHOWN_PROBLEMS]:
            settings = ", ".join(f"{key}={value}" for key, value in each.settings.items()) or "the training section"
            yield Problem(path, settings, text, "correct the members")


def _processes(config: DeploymentConfig, step: StepConfig) -> int:
    """Return the number of processes in each of a step's runs."""
    own = config.model_copy(update={"capacity": step.capacity or config.capacity})
    return own.capacity.nodes * processes_per_node(own)


def _listed(step: StepConfig) -> list[str]:
    """Return the keys that set the step's members. If there are several, the last one applies."""
    return [key for key in ("sweep", "members", "random") if getattr(step, key)]


def metrics(config: DeploymentConfig) -> Iterator[Problem]:
    """`keep` and `when` use metrics that a step reports."""
    steps = _steps(config)
    has_script = config.training.config.entrypoint is not None
    followed = {step.after for step in steps.values()}
    for name, step in steps.items():
        path, known = f"{PATH}.{name}", reported(step, entrypoint=has_script)
        if step.kept_metric is not None and step.kept_metric not in known:
            rule = f"uses a metric that the step does not report; it reports {', '.join(known) or 'none'}"
            yield Problem(f"{path}.keep", step.keep, rule, "use one of them")
        if step.keep is None and name in followed and count(step) > 1 and step.kind == "train":
            rule = f"is not set, but the step has {count(step)} members and another step follows"
            yield Problem(f"{path}.keep", None, rule, "set it, such as best(validation_loss)")
        if step.when is None:
            continue
        try:
            condition = parse_condition(step.when)
        except ConditionError as error:
            yield Problem(f"{path}.when", step.when, str(error), "correct the condition")
            continue
        before = steps.get(step.after or "")
        if before is None:
            if step.after is None:
                yield Problem(f"{path}.when", step.when, "requires a previous step", "remove it, or set after")
        elif condition.metric not in (available := reported(before, entrypoint=has_script)):
            rule = f"uses a metric that {step.after} does not report; it reports {', '.join(available) or 'none'}"
            yield Problem(f"{path}.when", step.when, rule, "use one of them, or list it in `reports`")


def fleets(config: DeploymentConfig) -> Iterator[Problem]:
    """Each step has enough fleets, and a step's own capacity follows the rules of the capacity section."""
    for name, step in _steps(config).items():
        path = f"{PATH}.{name}"
        if step.capacity is None:
            if step.parallel > config.capacity.slots:
                rule = f"is more than capacity.slots ({config.capacity.slots})"
                yield Problem(f"{path}.parallel", step.parallel, rule, f"set capacity.slots: {step.parallel}")
            continue
        for key in ("auto", "slots"):
            value = getattr(step.capacity, key)
            if value not in (None, 1):
                yield Problem(f"{path}.capacity.{key}", value, "is not supported in a step", "remove it")
        own = slot(config, step.suffixes(name)[0]).config.model_copy(update={"pipeline": None})
        for rule_of_capacity in (*capacity.RULES, *market.RULES):
            for problem in rule_of_capacity(own):
                if problem.path.startswith("capacity"):
                    yield replace(problem, path=f"{path}.{problem.path}")


def run_at_deploy(config: DeploymentConfig) -> Iterator[Problem]:
    """Limits apply to one run, so they do not limit a pipeline."""
    if config.pipeline is None:
        return
    if config.limits.deadline_hours is not None:
        rule = "applies to a single run, which would miss it while the steps before it run"
        yield Problem("limits.deadline_hours", config.limits.deadline_hours, rule, "set timeout_hours in the steps")


RULES = (engine, order, kinds, functions, sweeps, metrics, fleets, run_at_deploy)
