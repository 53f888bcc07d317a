"""ModifyVolume as EC2 takes it: a volume only grows, and changes four times a day at most.

The modification itself is moto's, and done at once. Source: docs.aws.amazon.com/AWSEC2/latest/APIReference/
API_ModifyVolume.html (2026-11: four times within a rolling 24 hours; older editions ask for six hours in between).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Clients, Handler
from localcloud.compute.launch import as_api_error

MODIFICATIONS = 4
WINDOW_SECONDS = 24 * 3600.0


class VolumeModifications:
    """The handler of ModifyVolume, and when each volume was modified."""

    def __init__(self, clients: Clients, clock: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._clock = clock
        self._lock = threading.Lock()
        self._times: dict[str, list[float]] = {}

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {"ModifyVolume": self.modify}

    def modify(self, call: Call) -> Mapping[str, Any]:
        """Answer ModifyVolume."""
        asked, volume_id = call.parameters, call.parameters["VolumeId"]
        client = self._clients.direct("ec2")
        try:
            with self._lock:
                (volume,) = client.describe_volumes(VolumeIds=[volume_id])["Volumes"]
                self._refuse(volume, asked)
                answer: dict[str, Any] = client.modify_volume(**asked)
                self._times[volume_id] = [*self._recent(volume_id), self._clock()]
        except ClientError as error:
            raise as_api_error(error) from error
        answer.pop("ResponseMetadata", None)
        return answer

    def _refuse(self, volume: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        size, kind = asked.get("Size"), asked.get("VolumeType")
        if size is not None and int(size) < volume["Size"]:
            raise ApiError("InvalidParameterValue", "New size cannot be smaller than existing size")
        if volume.get("MultiAttachEnabled") and kind not in (None, volume["VolumeType"]):
            raise ApiError("InvalidParameterCombination", "The type of a Multi-Attach volume cannot be changed")
        if len(self._recent(volume["VolumeId"])) >= MODIFICATIONS:
            raise ApiError(
                "VolumeModificationRateExceeded",
                f"You've reached the maximum modification rate per volume limit: {volume['VolumeId']} was modified "
                f"{MODIFICATIONS} times in the last 24 hours.",
            )

    def _recent(self, volume_id: str) -> list[float]:
        since = self._clock() - WINDOW_SECONDS
        return [at for at in self._times.get(volume_id, []) if at > since]
