"""Letters of each region's availability zones. An account can have fewer zones; `check --aws` queries them.

Source (2026-11): DescribeAvailabilityZones in each region as recorded in moto 5.2.5
(https://github.com/getmoto/moto), and the numbers of zones in
https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-availability-zones.html.
"""

from __future__ import annotations

from collections.abc import Mapping

USUAL = "abc"
LETTERS: Mapping[str, str] = {
    "ap-northeast-1": "acd",
    "ap-northeast-2": "abcd",
    "ca-central-1": "abd",
    "us-east-1": "abcdef",
    "us-west-1": "abc",
    "us-west-2": "abcd",
}
"""Zone letters for regions that do not have the USUAL letters."""
ZONES_PER_ACCOUNT: Mapping[str, int] = {"us-west-1": 2}
"""Number of zones that an account can use, for regions where an account cannot use all zones."""
DEFAULT_ZONES = 3


def zone_letters(region: str) -> str:
    """Return the letters of a region's zones."""
    return LETTERS.get(region, USUAL)


def default_zones(region: str) -> list[str]:
    """Return the zones for deployments that do not specify any, or an empty list if they depend on the account."""
    return [] if region in ZONES_PER_ACCOUNT else list(zone_letters(region)[:DEFAULT_ZONES])
