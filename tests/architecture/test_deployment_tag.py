"""The tag of a deployment: one constant per package, all equal."""

from __future__ import annotations

import bootstrap.aws
import stacks.config.deployment_tag
import trainstack.account

from .import_graph import ROOT, modules

HOLDERS = (bootstrap.aws, stacks.config.deployment_tag, trainstack.account)


def test_each_package_has_one_constant_of_the_same_value() -> None:
    (tag,) = {holder.DEPLOYMENT_TAG for holder in HOLDERS}
    for holder in HOLDERS:
        package = holder.__name__.partition(".")[0]
        places = [path for path in modules(package) if f'"{tag}"' in path.read_text(encoding="utf-8")]
        names = [path.relative_to(ROOT).as_posix() for path in places]
        # A function's bundle contains only the function's own package.
        names = [name for name in names if not name.startswith("stacks/functions/")]
        assert names == [holder.__name__.replace(".", "/") + ".py"]
