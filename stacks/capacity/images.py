"""Facts about the machine images behind public SSM parameters: the root device, and the instance families they support.

An image id does not reveal these facts without a call to AWS, so `check --aws` reads them from the image itself.
Sources (2026-11): the release notes under https://docs.aws.amazon.com/dlami/latest/devguide/ (PyTorch images of
2026-10, base images of 2026-09-04); https://docs.aws.amazon.com/linux/al2023/ug/ec2.html;
https://documentation.ubuntu.com/aws/aws-how-to/instances/find-ubuntu-images/.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hardware import InstanceType

UBUNTU_ROOT, AMAZON_LINUX_ROOT = "/dev/sda1", "/dev/xvda"
_PYTORCH = frozenset(["g4dn", "g5", "g6", "gr6", "g6e", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200"])
_BASE = _PYTORCH | {"g7", "g7e", "p6-b300"}


@dataclass(frozen=True)
class ImageFacts:
    """Facts about an image.

    Attributes:
        root_device: Device name of the root volume.
        gpu_families: Families with GPUs whose driver the image contains. None: unknown.
    """

    root_device: str
    gpu_families: frozenset[str] | None

    def supports(self, instance_type: InstanceType) -> bool:
        """Return False if the image does not have a driver for a type's GPUs."""
        return not instance_type.gpus or self.gpu_families is None or instance_type.family.name in self.gpu_families


IMAGES: tuple[tuple[str, ImageFacts], ...] = (
    (r"/aws/service/deeplearning/.*pytorch.*ubuntu", ImageFacts(UBUNTU_ROOT, _PYTORCH)),
    (r"/aws/service/deeplearning/.*pytorch.*amazon-linux", ImageFacts(AMAZON_LINUX_ROOT, _PYTORCH)),
    (r"/aws/service/deeplearning/.*/base-oss-.*ubuntu", ImageFacts(UBUNTU_ROOT, _BASE)),
    (r"/aws/service/deeplearning/.*/base-oss-.*amazon-linux", ImageFacts(AMAZON_LINUX_ROOT, _BASE)),
    (r"/aws/service/deeplearning/.*ubuntu", ImageFacts(UBUNTU_ROOT, None)),
    (r"/aws/service/deeplearning/.*amazon-linux", ImageFacts(AMAZON_LINUX_ROOT, None)),
    (r"/aws/service/canonical/ubuntu/", ImageFacts(UBUNTU_ROOT, frozenset())),
    (r"/aws/service/ami-amazon-linux-latest/", ImageFacts(AMAZON_LINUX_ROOT, frozenset())),
    (r"Deep Learning .*PyTorch.*\(Ubuntu", ImageFacts(UBUNTU_ROOT, _PYTORCH)),
    (r"Deep Learning .*PyTorch.*\(Amazon Linux", ImageFacts(AMAZON_LINUX_ROOT, _PYTORCH)),
    (r"Deep Learning Base OSS .*\(Ubuntu", ImageFacts(UBUNTU_ROOT, _BASE)),
    (r"Deep Learning Base OSS .*\(Amazon Linux", ImageFacts(AMAZON_LINUX_ROOT, _BASE)),
)
"""Facts by the beginning of a public parameter's name or an image's name; the first matching pattern applies."""


def image_facts(name: str) -> ImageFacts | None:
    """Return the facts about a public parameter's image or an image with this name, or None for all others."""
    return next((facts for pattern, facts in IMAGES if re.match(pattern, name)), None)
