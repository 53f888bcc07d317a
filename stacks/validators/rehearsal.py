"""Warnings for a rehearsal: what a file needs so that a run trains on the embedded cloud, whose nodes are processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_network
from urllib.parse import urlsplit

from stacks.capacity.plan import gpus
from stacks.config import DeploymentConfig
from stacks.config.setting import UndecodedKey
from stacks.errors import Problem

ENDPOINT = "AWS_ENDPOINT_URL"
"""Variable that directs calls to another endpoint than AWS's.
Source (2026-11): https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html"""
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
LOOPBACK = ip_network("127.0.0.0/8")


def rehearsal(config: DeploymentConfig, environment: Mapping[str, str]) -> list[Problem]:
    """Return a warning for each key with which nodes of the embedded cloud would not train.

    Args:
        config: A deployment.
        environment: The process's environment variables. Their endpoint shows whether calls go to an embedded cloud.
    """
    if urlsplit(environment.get(ENDPOINT, "")).hostname not in THIS_MACHINE or config.engine != "fleet":
        return []
    found: list[Problem] = []
    for rule in (_interpreter, _wheelhouse, _gpus, _addresses):
        with suppress(UndecodedKey):
            found += rule(config)
    return found


def _interpreter(config: DeploymentConfig) -> Iterator[Problem]:
    interpreter = config.node.python.interpreter
    if shutil.which(interpreter) is None:
        rule = "does not exist on this machine, whose processes are the nodes of the embedded cloud: boot fails"
        remedy = "for a rehearsal, set an interpreter of this machine with torch, such as python3"
        yield Problem("node.python.interpreter", interpreter, rule, remedy, "warning")


def _wheelhouse(config: DeploymentConfig) -> Iterator[Problem]:
    wheelhouse = config.node.python.wheelhouse
    if wheelhouse != "off":
        rule = "locks wheels for the image's versions of Python, which differ from this machine's: boot fails"
        remedy = 'for a rehearsal, set "off": the nodes of the embedded cloud have the packages of this environment'
        yield Problem("node.python.wheelhouse", wheelhouse, rule, remedy, "warning")


def _gpus(config: DeploymentConfig) -> Iterator[Problem]:
    if gpus(config) and shutil.which("nvidia-smi") is None:
        rule = "are types with GPUs, which neither this machine nor the nodes of the embedded cloud have: boot fails"
        remedy = "for a rehearsal, use types without GPUs, such as c7i.2xlarge, and a model of a few million parameters"
        listed = ", ".join(config.capacity.instance_types)
        yield Problem("capacity.instance_types", listed, rule, remedy, "warning")


def _addresses(config: DeploymentConfig) -> Iterator[Problem]:
    if config.network.existing is None and not ip_network(config.network.cidr).subnet_of(LOOPBACK):  # type: ignore[arg-type]
        rule = "has no addresses of this machine, so the nodes of the embedded cloud cannot reach each other"
        remedy = "for a rehearsal, use a part of 127.0.0.0/8, such as 127.64.0.0/16"
        yield Problem("network.cidr", config.network.cidr, rule, remedy, "warning")
