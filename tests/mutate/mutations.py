"""The mutations: a line of code, its replacement, and the tests that must fail."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """A fault in one file.

    Attributes:
        file: path of the file.
        old: text to replace; occurs once in the file.
        new: replacement.
        tests: paths or ids of the tests that must detect it.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


DECIDE = ("tests/bootstrap/test_decide.py",)
POLICY = ("tests/stacks/run_controller/test_policy.py",)
PLACEMENT = ("tests/stacks/run_controller/test_placement.py",)

MUTATIONS = (
    # bootstrap
    Mutation(
        "bootstrap/supervise/decide.py",
        "min(NOTICE_MARGIN_SECONDS, length_seconds / 10)",
        "NOTICE_MARGIN_SECONDS",
        DECIDE,
    ),
    Mutation(
        "bootstrap/supervise/decide.py",
        "if judgement.mine or waited > situation.timings.verdict_seconds:",
        "if judgement.mine or waited > 0:",
        DECIDE,
    ),
    Mutation(
        "bootstrap/supervise/decide.py",
        "train_on = leaving.train_on and active.stop_deadline_unix is None",
        "train_on = leaving.train_on",
        DECIDE,
    ),
    Mutation(
        "bootstrap/supervise/membership/peers.py",
        "entry.moved_at += blind_seconds",
        "entry.moved_at += 0.0",
        ("tests/bootstrap/test_control.py",),
    ),
    Mutation(
        "bootstrap/supervise/membership/peers.py",
        "proven=not first",
        "proven=True",
        ("tests/bootstrap/test_control.py",),
    ),
    Mutation(
        "bootstrap/disks/listing.py",
        "if any(edges) else None",
        "if all(edges) else None",
        ("tests/bootstrap/test_local_disks.py",),
    ),
    Mutation(
        "bootstrap/fetch/window.py",
        "if self._responses < self.size or",
        "if",
        ("tests/bootstrap/fetch/test_window.py",),
    ),
    Mutation(
        "bootstrap/gpus/health.py",
        "if number in FATAL_XIDS",
        "if number >= min(FATAL_XIDS)",
        ("tests/bootstrap/test_instance_checks.py",),
    ),
    # training
    Mutation(
        "training/data/samples.py",
        "if not ends.size or ends[-1] != split.tokens:",
        "if ends[-1] != split.tokens:",
        ("tests/training/test_data.py",),
    ),
    Mutation(
        "training/data/text/destination.py",
        ' and "/" not in key',
        "",
        ("tests/training/test_tokenize.py",),
    ),
    Mutation(
        "training/data/streaming.py",
        "room = self._max_bytes - len(wanted) * block_bytes",
        "room = self._max_bytes",
        ("tests/training/test_streaming.py",),
    ),
    Mutation(
        "training/loop/loss_watch.py",
        "max(1.0 - DECAY, 1.0 / (self._steps + 1))",
        "1.0 - DECAY",
        ("tests/training/test_recovery.py",),
    ),
    Mutation(
        "training/loop/early_stopping.py",
        "self._best - self._settings.min_delta",
        "self._best + self._settings.min_delta",
        ("tests/training/test_recovery.py",),
    ),
    Mutation(
        "training/loop/last_save.py",
        "expected_seconds - times.in_flight_seconds",
        "expected_seconds",
        ("tests/training/test_stop.py",),
    ),
    Mutation(
        "training/loop/lr_schedule.py",
        "peak * (step + 1) / warmup_steps",
        "peak * step / warmup_steps",
        ("tests/training/test_step.py",),
    ),
    Mutation(
        "training/checkpoint/retention.py",
        "(item[0][1], -item[0][0])",
        "(item[0][1], item[0][0])",
        ("tests/training/checkpoint/test_retention.py",),
    ),
    Mutation(
        "training/checkpoint/gc.py",
        "int(match.group(1)) <= newest",
        "int(match.group(1)) < newest",
        ("tests/training/checkpoint/test_gc.py",),
    ),
    Mutation(
        "training/checkpoint/interval.py",
        "excess = max(0.0, sum(self._disturbed)",
        "excess = (0.0 * sum(self._disturbed)",
        ("tests/training/checkpoint/test_interval.py",),
    ),
    # stacks
    Mutation(
        "stacks/functions/run_controller/policy.py",
        "if state.attempt % placements or not state.had_instances or replacement.bought(state):",
        "if state.attempt % placements or replacement.bought(state):",
        POLICY,
    ),
    Mutation(
        "stacks/functions/run_controller/policy.py",
        "boot_failures=0 if has_booted else state.boot_failures + len(failed)",
        "boot_failures=state.boot_failures + len(failed)",
        POLICY,
    ),
    Mutation(
        "stacks/functions/run_controller/replacement.py",
        "wanted = min(len(lost), max(0, target - staying))",
        "wanted = len(lost)",
        POLICY,
    ),
    Mutation(
        "stacks/functions/run_controller/placement.py",
        "return slack < 2.0 * self.restart_hours + copied_hours + self.period_hours",
        "return slack < self.restart_hours + copied_hours + self.period_hours",
        PLACEMENT,
    ),
    Mutation(
        "stacks/functions/run_controller/placement.py",
        "needs_on_demand=work > pace * remaining,",
        "needs_on_demand=work > share * remaining,",
        PLACEMENT,
    ),
    Mutation(
        "stacks/functions/run_controller/placement.py",
        'if own is None or task.choose != "cost" or task.stayed_hours < MIN_STAY_HOURS:',
        'if own is None or task.choose != "cost":',
        ("tests/stacks/run_controller/test_moving.py",),
    ),
    Mutation(
        "stacks/functions/run_controller/zone_choice.py",
        "return any(failure.unix_seconds >= since_unix_seconds for failure in situation.launch_failures)",
        "return bool(situation.launch_failures)",
        ("tests/stacks/run_controller/test_zone_choice.py",),
    ),
    Mutation(
        "stacks/functions/run_controller/spot_schedule.py",
        "max(work / (1.0 + math.sqrt(price_ratio)), 2.0 * work - remaining)",
        "work / (1.0 + math.sqrt(price_ratio))",
        ("tests/stacks/run_controller/test_spot_schedule.py",),
    ),
    Mutation(
        "stacks/changes/review.py",
        "return old_region == new_region and len(accounts) <= 1",
        "return len(accounts) <= 1",
        ("tests/stacks/changes/test_edits.py::test_edit_has_the_expected_review_and_keys[region-changed]",),
    ),
    Mutation(
        "stacks/validators/storage.py",
        " or _is_inside(other, mount):",
        ":",
        ("tests/stacks/test_wrong_configs.py",),
    ),
    Mutation(
        "stacks/validators/capacity.py",
        "if days > PRICES_EXPIRE_AFTER_DAYS:",
        "if days >= PRICES_EXPIRE_AFTER_DAYS:",
        ("tests/stacks/test_warnings.py",),
    ),
    Mutation(
        "stacks/validators/capacity.py",
        "limit = SPREAD_INSTANCES_PER_ZONE * len(config.network.subnet_zones)",
        "limit = SPREAD_INSTANCES_PER_ZONE",
        ("tests/stacks/test_wrong_configs.py",),
    ),
    Mutation(
        "stacks/artifacts/bundles.py",
        ' or path.suffix == ".pyc"',
        "",
        ("tests/stacks/test_bundles.py",),
    ),
    Mutation(
        "stacks/functions/run_controller/ledger/sources.py",
        'yield Sighting(found[2], gone_unix_seconds=activity["StartTime"].timestamp())',
        "continue",
        ("tests/stacks/run_controller/test_keeper.py",),
    ),
    # localcloud
    Mutation(
        "localcloud/iam/policy.py",
        'return not _names(statement["NotPrincipal"], principal)',
        'return _names(statement["NotPrincipal"], principal)',
        ("tests/localcloud/core/test_policy.py",),
    ),
    Mutation(
        "localcloud/iam/authority.py",
        'if boundary is not None and verdict([boundary], access, context, None) != "allow":',
        'if boundary is not None and verdict([boundary], access, context, None) == "deny":',
        ("tests/localcloud/core/test_gateway.py",),
    ),
    Mutation(
        "localcloud/compute/autoscaling/distribution.py",
        "return base + math.ceil(",
        "return base + math.floor(",
        ("tests/localcloud/compute/test_distribution.py",),
    ),
    Mutation(
        "localcloud/cloudformation/updates/replacement.py",
        'return "Conditional" if always else "False"',
        'return "True" if always else "False"',
        ("tests/localcloud/cloudformation/test_replacement.py",),
    ),
)
