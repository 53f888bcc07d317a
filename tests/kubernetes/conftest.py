from __future__ import annotations

from tests.bootstrap.conftest import account, aws_environment, moto_endpoint, stand_in

__all__ = ["account", "aws_environment", "moto_endpoint", "stand_in"]
